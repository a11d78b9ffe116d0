// Programs and users that are none of the group's come to its socket.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <optional>

#include "bootstrap_ranks.hpp"

namespace flashmoe::test {
namespace {

using fabric::UniqueFd;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Strangers = BootstrapTest;

TEST_F(Strangers, one_that_says_nothing_is_passed_over) {
  start(0, 2, kAmple, meet_again);
  const UniqueFd silent = knock();
  { const UniqueFd gone = knock(); }
  start(1, 2, kAmple, meet_again);
  EXPECT_THAT(processes_.finish_all(), Each(std::string("met;again")));
}

TEST_F(Strangers, one_that_speaks_another_protocol_is_told_apart) {
  start(0, 2, kAmple, nothing);
  const UniqueFd stranger = knock();
  const std::string text = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(send(stranger.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  EXPECT_THAT(processes_.finish(0), AllOf(StartsWith("FabricError"), HasSubstr(fmt::format("process {} came to", getpid())),
                                          HasSubstr("speaks another protocol")));
}

TEST_F(Strangers, a_name_held_by_another_user_is_refused_at_both_ends) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  processes_.start([name = socket_name()](const Processes::Say& say) {
    if (seteuid(65534) != 0) return std::string("no other user");
    const std::optional<UniqueFd> listener = fabric::listen_at(name, 8);
    say("listening");
    pause();
    return std::string();
  });
  ASSERT_TRUE(processes_.wait_for(0, "listening"));
  start(0, 2, kAmple, nothing);
  start(1, 2, kAmple, nothing);
  EXPECT_THAT(processes_.finish(1), HasSubstr(fmt::format("already taken by process {} of user 65534", processes_.pid(0))));
  EXPECT_THAT(processes_.finish(2), HasSubstr(fmt::format("belongs to process {} of user 65534", processes_.pid(0))));
}

TEST_F(Strangers, another_users_process_cannot_come_in) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  start(0, 2, 2.0, nothing);
  { const UniqueFd until_it_listens = knock(); }
  processes_.start([name = socket_name()](const Processes::Say&) {
    if (seteuid(65534) != 0) return std::string("no other user");
    const std::optional<UniqueFd> connection = fabric::connect_to(name);
    if (!connection) return std::string("not connected");
    fabric::Frame frame;
    fabric::Connection to_rank_0(UniqueFd(dup(connection->get())));
    const auto transfer = to_rank_0.receive(frame, fabric::after_seconds(kAmple));
    return std::string(transfer == fabric::Transfer::closed ? "closed" : "answered");
  });
  EXPECT_EQ(processes_.finish(1), "closed");
  EXPECT_THAT(processes_.finish(0), HasSubstr("Timeout: rank 1"));
}

}  // namespace
}  // namespace flashmoe::test
