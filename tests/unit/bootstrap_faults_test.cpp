// Ranks that do not come, die or disagree are named to the others.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <exception>
#include <span>

#include "bootstrap_ranks.hpp"

namespace flashmoe::test {
namespace {

using fabric::Bootstrap;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// ---- ranks that do not come

TEST_F(BootstrapTest, missing_ranks_are_named_to_all_within_the_deadline) {
  start(0, 4, kShort, nothing);
  start(1, 4, kShort, nothing);
  EXPECT_THAT(processes_.finish_all(),
              Each(StartsWith(fmt::format("Timeout: ranks 2 and 3 of group '{}' did not come within {} s", group_, kShort))));
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}

TEST_F(BootstrapTest, the_rank_with_the_least_patience_ends_the_wait_for_all) {
  start(0, 3, kAmple, nothing);
  start(2, 3, kShort, nothing);
  EXPECT_THAT(processes_.finish_all(), Each(HasSubstr("Timeout: rank 1 of group")));
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}

TEST_F(BootstrapTest, a_missing_rank_0_is_named) {
  start(1, 3, kShort, nothing);
  start(2, 3, kShort, nothing);
  EXPECT_THAT(processes_.finish_all(), Each(HasSubstr("Timeout: rank 0 of group")));
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}

TEST_F(BootstrapTest, late_ranks_only_delay) {
  start(0, 3, kAmple, meet_again, 300);
  start(1, 3, kAmple, meet_again);
  start(2, 3, kAmple, meet_again, 600);
  EXPECT_THAT(processes_.finish_all(), Each(std::string("met;again")));
}

TEST_F(BootstrapTest, a_rank_that_misses_a_step_is_named) {
  for (const int rank : {0, 1, 2}) {
    start(rank, 3, kShort, [](Bootstrap& group, const Processes::Say&) {
      if (group.rank() == 1) sleep_ms(2500);
      if (group.rank() != 1) group.barrier();
      return std::string("slept");
    });
  }
  EXPECT_THAT(processes_.finish(0), HasSubstr("Timeout: rank 1 of group"));
  EXPECT_THAT(processes_.finish(2), HasSubstr("Timeout: rank 1 of group"));
}

TEST_F(BootstrapTest, a_stopped_rank_is_named_and_learns_of_it) {
  start_all(3, kShort, [](Bootstrap& group, const Processes::Say& say) {
    say("met;");
    if (group.rank() == 2) raise(SIGSTOP);
    group.barrier();
    return std::string("again");
  });
  EXPECT_THAT(processes_.finish(0), HasSubstr("Timeout: rank 2 of group"));
  EXPECT_THAT(processes_.finish(1), HasSubstr("Timeout: rank 2 of group"));
  processes_.signal(2, SIGCONT);
  EXPECT_THAT(processes_.finish(2), HasSubstr("Timeout: rank 2 of group"));
}

// ---- ranks that die

class Killed : public BootstrapTest, public ::testing::WithParamInterface<int> {};

TEST_P(Killed, a_killed_rank_is_named_at_once) {
  const int victim = GetParam();
  start_all(3, kAmple, [victim](Bootstrap& group, const Processes::Say& say) {
    say("met;");
    if (group.rank() == victim) pause();
    group.barrier();
    return std::string("again");
  });
  for (std::size_t rank = 0; rank < 3; ++rank) ASSERT_TRUE(processes_.wait_for(rank, "met;"));
  const std::string wanted = fmt::format("FabricError: rank {} (process {}) of group", victim,
                                         processes_.pid(static_cast<std::size_t>(victim)));
  processes_.signal(static_cast<std::size_t>(victim), SIGKILL);
  for (int rank = 0; rank < 3; ++rank) {
    const std::string said = processes_.finish(static_cast<std::size_t>(rank));
    if (rank == victim) {
      EXPECT_EQ(said, "met; (signal 9)");
    } else {
      EXPECT_THAT(said, HasSubstr(wanted));
    }
  }
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}
INSTANTIATE_TEST_SUITE_P(EveryRank, Killed, ::testing::Values(0, 1, 2));

TEST_F(BootstrapTest, a_rank_killed_while_the_group_forms_is_named_at_once) {
  start(0, 3, kAmple, nothing);
  processes_.start([this](const Processes::Say& say) {
    fabric::Connection connection(knock());
    const std::int32_t hello[] = {1, 3};
    connection.send(fabric::FrameKind::hello, fabric::after_seconds(kAmple), std::as_bytes(std::span(hello)), {},
                    fabric::after_seconds(kAmple));
    say("hello");
    pause();
    return std::string();
  });
  ASSERT_TRUE(processes_.wait_for(1, "hello"));
  processes_.signal(1, SIGKILL);
  EXPECT_THAT(processes_.finish(0), AllOf(HasSubstr(fmt::format("FabricError: rank 1 (process {})", processes_.pid(1))),
                                          HasSubstr("while the group was forming")));
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}

TEST_F(BootstrapTest, the_name_of_a_killed_group_is_free_again) {
  start(0, 2, kAmple, nothing);
  knock();
  processes_.signal(0, SIGKILL);
  EXPECT_EQ(processes_.finish(0), " (signal 9)");
  start(0, 2, kAmple, meet_again);
  start(1, 2, kAmple, meet_again);
  EXPECT_EQ(processes_.finish(1), "met;again");
  EXPECT_EQ(processes_.finish(2), "met;again");
}

TEST_F(BootstrapTest, a_reason_for_giving_up_reaches_all) {
  for (const int quitter : {0, 1}) {
    Processes ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.start([=, group = fmt::format("{}{}", group_, quitter)](const Processes::Say&) {
        Bootstrap bootstrap(group, rank, 3, kAmple);
        if (rank == quitter) bootstrap.give_up("its GPU has no 12 bytes left");
        bootstrap.barrier();
        return std::string("again");
      });
    }
    EXPECT_THAT(ranks.finish_all(), Each(AllOf(StartsWith("FabricError"), HasSubstr("its GPU has no 12 bytes left"))));
  }
}

TEST_F(BootstrapTest, a_failed_group_repeats_its_error) {
  start_all(2, kShort, [](Bootstrap& group, const Processes::Say&) {
    if (group.rank() == 1) return std::string("gone");
    std::string first;
    try {
      group.barrier();
    } catch (const std::exception& error) {
      first = error.what();
    }
    if (group.leave(kAmple)) return std::string("left a failed group");
    try {
      group.allgather({});
    } catch (const FabricError& error) {
      return first == error.what() ? std::string("same") : std::string("another");
    }
    return std::string("passed");
  });
  EXPECT_EQ(processes_.finish(0), "same");
}

// ---- ranks that disagree

TEST_F(BootstrapTest, different_num_ranks_are_refused_with_both) {
  start(0, 3, kAmple, nothing);
  start(1, 4, kAmple, nothing);
  EXPECT_THAT(processes_.finish_all(), Each(AllOf(StartsWith("FabricError: rank 1 (process"), HasSubstr("has 4 ranks"),
                                                  HasSubstr("rank 0 says 3"))));
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}

TEST_F(BootstrapTest, a_rank_claimed_twice_is_refused) {
  start(0, 3, kAmple, nothing);
  start(1, 3, kAmple, nothing);
  start(1, 3, kAmple, nothing);
  EXPECT_THAT(processes_.finish_all(),
              Each(AllOf(StartsWith("FabricError: rank 1 of group"), HasSubstr("is claimed by processes"))));
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}

TEST_F(BootstrapTest, rank_0_claimed_twice_is_refused_and_the_first_goes_on) {
  start(0, 2, kAmple, nothing);
  knock();
  start(0, 2, kAmple, nothing);
  EXPECT_THAT(processes_.finish(1), AllOf(StartsWith("FabricError: rank 0 of group"),
                                          HasSubstr(fmt::format("already taken by process {}", processes_.pid(0)))));
  start(1, 2, kAmple, nothing);
  EXPECT_EQ(processes_.finish(0), "met");
  EXPECT_EQ(processes_.finish(2), "met");
}

TEST_F(BootstrapTest, ranks_at_different_steps_are_told) {
  start_all(3, kAmple, [](Bootstrap& group, const Processes::Say&) {
    if (group.rank() == 2) {
      group.allgather({});
    } else {
      group.barrier();
    }
    return std::string("passed");
  });
  EXPECT_THAT(processes_.finish_all(), Each(AllOf(StartsWith("FabricError: rank 2 (process"),
                                                  HasSubstr("came to allgather while rank 0 came to barrier"))));
}

}  // namespace
}  // namespace flashmoe::test
