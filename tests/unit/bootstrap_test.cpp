// Ranks meet, exchange and part, each in a process of its own; and everything that can keep them from it.
#include "fabric/bootstrap.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "support/processes.hpp"

namespace flashmoe::test {
namespace {

using fabric::Bootstrap;
using fabric::UniqueFd;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kAmple = 30;   // a deadline that must not pass
constexpr double kShort = 0.8;  // one that must

void sleep_ms(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string text_of(const std::vector<std::byte>& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

class BootstrapTest : public ::testing::Test {
 protected:
  using RankBody = std::function<std::string(Bootstrap&, const Processes::Say&)>;

  /// Starts a process that joins as `rank` after `delay_ms` and then runs `body`.
  void start(int rank, int num_ranks, double deadline_seconds, const RankBody& body, int delay_ms = 0) {
    processes_.start([=, group = group_](const Processes::Say& say) {
      sleep_ms(delay_ms);
      Bootstrap bootstrap(group, rank, num_ranks, deadline_seconds);
      return body(bootstrap, say);
    });
  }
  void start_all(int num_ranks, double deadline_seconds, const RankBody& body) {
    for (int rank = 0; rank < num_ranks; ++rank) start(rank, num_ranks, deadline_seconds, body);
  }
  double elapsed_seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

  static std::string nothing(Bootstrap&, const Processes::Say&) { return "met"; }
  static std::string meet_again(Bootstrap& bootstrap, const Processes::Say& say) {
    say("met;");
    bootstrap.barrier();
    return "again";
  }

  /// The socket's name, for those who come without a Bootstrap.
  std::string socket_name() const { return fmt::format("flashmoe/{}/{}", geteuid(), group_); }
  UniqueFd knock() const {
    while (true) {
      if (std::optional<UniqueFd> connection = fabric::connect_to(socket_name())) return std::move(*connection);
      sleep_ms(5);
    }
  }

  std::string group_ =
      fmt::format("{}-{:.40}", getpid(), ::testing::UnitTest::GetInstance()->current_test_info()->name());
  Processes processes_;
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

// ---- steps

TEST_F(BootstrapTest, every_rank_gets_the_bytes_of_all_by_rank) {
  for (int rank = 0; rank < 4; ++rank) {
    const auto body = [](Bootstrap& group, const Processes::Say&) {
      std::string said;
      for (int round = 0; round < 3; ++round) {
        const std::string own(static_cast<std::size_t>(group.rank() * round), static_cast<char>('a' + group.rank()));
        for (const auto& part : group.allgather(bytes_of(own))) said += text_of(part) + ",";
      }
      return said;
    };
    start(rank, 4, kAmple, body, 60 * ((rank + 2) % 4));  // in the order 2, 3, 0, 1
  }
  EXPECT_THAT(processes_.finish_all(), Each(std::string(",,,,,b,cc,ddd,,bb,cccc,dddddd,")));
}

TEST_F(BootstrapTest, a_megabyte_a_rank_passes) {
  start_all(3, kAmple, [](Bootstrap& group, const Processes::Say&) {
    const std::vector<std::byte> own(Bootstrap::kMaxGatheredBytes, static_cast<std::byte>(group.rank()));
    const auto parts = group.allgather(own);
    for (std::size_t rank = 0; rank < parts.size(); ++rank) {
      if (parts[rank] != std::vector<std::byte>(own.size(), static_cast<std::byte>(rank))) return std::string("wrong");
    }
    return std::string("right");
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("right")));
}

TEST_F(BootstrapTest, values_come_back_as_values) {
  start_all(3, kAmple, [](Bootstrap& group, const Processes::Say&) {
    const std::vector<double> values = group.allgather_values(0.5 + group.rank());
    return fmt::format("{} {} {}", values.at(0), values.at(1), values.at(2));
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("0.5 1.5 2.5")));
}

TEST_F(BootstrapTest, values_of_other_sizes_are_refused) {
  start_all(2, kAmple, [](Bootstrap& group, const Processes::Say&) {
    if (group.rank() == 0) group.allgather_values(1.0);
    if (group.rank() == 1) group.allgather_values(1.0f);
    return std::string("passed");
  });
  EXPECT_THAT(processes_.finish(0), AllOf(StartsWith("FabricError"), HasSubstr("gave 4 where 8 was wanted")));
  EXPECT_THAT(processes_.finish(1), AllOf(StartsWith("FabricError"), HasSubstr("gave 8 where 4 was wanted")));
}

TEST_F(BootstrapTest, every_rank_opens_the_files_of_all) {
  start_all(4, kAmple, [](Bootstrap& group, const Processes::Say&) {
    const UniqueFd file(memfd_create("rank", MFD_CLOEXEC));
    const std::string text = fmt::format("of rank {};", group.rank());
    if (write(file.get(), text.data(), text.size()) < 0) return std::string("no file");
    std::string read_back;
    for (const UniqueFd& fd : group.exchange_fds(file.get())) {
      char buffer[64];
      const ssize_t count = pread(fd.get(), buffer, sizeof(buffer), 0);
      read_back.append(buffer, static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
      if ((fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) == 0) read_back += "inherited by programs;";
    }
    return read_back;
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("of rank 0;of rank 1;of rank 2;of rank 3;")));
}

TEST_F(BootstrapTest, nobody_passes_a_barrier_before_all_have_come) {
  auto* arrived = static_cast<std::atomic<int>*>(
      mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  start_all(4, kAmple, [arrived](Bootstrap& group, const Processes::Say&) {
    for (int round = 1; round <= 20; ++round) {
      if (round % 5 == group.rank()) sleep_ms(10);
      arrived->fetch_add(1);
      group.barrier();
      if (arrived->load() < 4 * round) return fmt::format("rank {} passed early", group.rank());
    }
    return std::string("kept");
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("kept")));
  munmap(arrived, sizeof(std::atomic<int>));
}

TEST_F(BootstrapTest, a_group_of_one_needs_nobody) {
  Bootstrap alone(group_, 0, 1, kShort);
  Bootstrap same_name(group_, 0, 1, kShort);
  EXPECT_EQ(text_of(alone.allgather(bytes_of("me")).at(0)), "me");
  EXPECT_EQ(alone.exchange_fds(0).size(), 1u);
  alone.barrier();
  EXPECT_TRUE(alone.leave(kShort));
}

TEST_F(BootstrapTest, two_hundred_groups_leave_no_file_open_and_no_name_behind) {
  start_all(3, kAmple, [group = group_](Bootstrap& outer, const Processes::Say&) {
    const int before = count_open_files();
    for (int cycle = 0; cycle < 200; ++cycle) {
      Bootstrap inner(group + ".", outer.rank(), 3, kAmple);  // the same id every time
      inner.exchange_fds(0);
      if (!inner.leave(kAmple)) return std::string("not left");
      outer.barrier();
    }
    return count_open_files() == before ? std::string("clean") : fmt::format("{} files more", count_open_files() - before);
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("clean")));
}

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

// ---- strangers

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

// ---- limits

/// While it lives, the process may open `more` files beside those up to the lowest free number.
class FewFiles {
 public:
  explicit FewFiles(int more) {
    const UniqueFd next(dup(0));
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit few{static_cast<rlim_t>(next.get() + more), before_.rlim_max};
    setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewFiles() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(BootstrapTest, a_rank_that_may_open_no_more_files_says_so) {
  for (const int poor : {0, 1}) {
    Processes ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.start([=, group = fmt::format("{}{}", group_, poor)](const Processes::Say&) {
        Bootstrap bootstrap(group, rank, 3, kAmple);
        std::optional<FewFiles> few;
        if (rank == poor) few.emplace(1);
        const auto fds = bootstrap.exchange_fds(0);
        bootstrap.barrier();
        return fmt::format("{} files", fds.size());
      });
    }
    EXPECT_THAT(ranks.finish_all(), Each(AllOf(StartsWith("FabricError"), HasSubstr(fmt::format("rank {}", poor)),
                                               HasSubstr("may open no more files"))));
  }
}

TEST(BootstrapArguments, out_of_range_are_refused_with_the_range) {
  const auto message = [](const std::string& id, int rank, int num_ranks, double deadline) {
    try {
      Bootstrap bootstrap(id, rank, num_ranks, deadline);
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(message("", 0, 1, 1), HasSubstr("group_id must have 1..64 printable ASCII characters, got 0"));
  EXPECT_THAT(message(std::string(65, 'x'), 0, 1, 1), HasSubstr("got 65"));
  EXPECT_THAT(message("a\nb", 0, 1, 1), HasSubstr("('a?b')"));
  EXPECT_THAT(message("x", 0, 0, 1), HasSubstr("num_ranks must be 1..64, got 0"));
  EXPECT_THAT(message("x", 0, 65, 1), HasSubstr("got 65"));
  EXPECT_THAT(message("x", -1, 2, 1), HasSubstr("rank must be 0..1 in a group of 2 ranks, got -1"));
  EXPECT_THAT(message("x", 2, 2, 1), HasSubstr("got 2"));
  EXPECT_THAT(message("x", 0, 1, 0), HasSubstr("deadline_seconds must be above 0, got 0"));
  Bootstrap alone("x", 0, 1, 1);
  EXPECT_THROW(alone.exchange_fds(-1), InvalidArgument);
  EXPECT_THROW(alone.allgather(std::vector<std::byte>(Bootstrap::kMaxGatheredBytes + 1)), InvalidArgument);
}

// ---- parting

TEST_F(BootstrapTest, leaving_waits_for_all) {
  start_all(3, kAmple, [](Bootstrap& group, const Processes::Say&) {
    const auto begin = std::chrono::steady_clock::now();
    if (group.rank() == 2) sleep_ms(400);
    const bool left = group.leave(kAmple);
    const bool waited = std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(300);
    return fmt::format("{} {}", left, waited);
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("true true")));
}

TEST_F(BootstrapTest, leaving_does_not_wait_for_the_dead) {
  start_all(3, kAmple, [](Bootstrap& group, const Processes::Say& say) {
    say("met;");
    if (group.rank() == 1) raise(SIGKILL);
    return std::string(group.leave(kAmple) ? "left" : "lost");
  });
  EXPECT_EQ(processes_.finish(0), "met;left");
  EXPECT_EQ(processes_.finish(2), "met;left");
  EXPECT_LT(elapsed_seconds(), kAmple / 3);
}

TEST_F(BootstrapTest, leaving_gives_up_on_ranks_that_stay) {
  start_all(3, kAmple, [](Bootstrap& group, const Processes::Say&) {
    if (group.rank() == 1) sleep_ms(2000);
    return std::string(group.leave(kShort) ? "left" : "lost");
  });
  EXPECT_THAT(processes_.finish_all(), Each(std::string("lost")));
}

}  // namespace
}  // namespace flashmoe::test
