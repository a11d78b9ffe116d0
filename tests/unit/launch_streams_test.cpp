// Ranks that share a GPU and a stream.
#include "fabric/launch_streams.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "flashmoe/error.hpp"

namespace flashmoe::fabric {
namespace {

using testing::ThrowsMessage;

TEST(LaunchStreams, one_call_of_two_ranks_of_a_gpu_on_one_stream_is_refused) {
  const int streams[2] = {};
  LaunchStreams launches(3);
  launches.note(0, 5, &streams[0]);
  EXPECT_THAT([&] { launches.note(2, 5, &streams[0]); },
              ThrowsMessage<InvalidArgument>("stream of rank 2's call 0 is that of rank 0's on GPU 5, where each would wait for "
                                             "the other: give every rank of a GPU a stream of its own"));
  launches.note(2, 5, &streams[1]);  // nothing was noted before
  launches.note(1, 4, &streams[0]);  // handles of two GPUs are not compared
  launches.note(2, 5, &streams[0]);  // its next call begins when rank 0's first has ended
  EXPECT_THROW(launches.note(0, 5, &streams[0]), InvalidArgument);
}

TEST(LaunchStreams, streams_that_are_a_threads_own_are_never_shared) {
  LaunchStreams launches(2);
  launches.note(0, 0, nullptr);
  launches.note(1, 0, nullptr);
}

}  // namespace
}  // namespace flashmoe::fabric
