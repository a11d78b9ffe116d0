// Ranks meet, exchange and part.
#include "fabric/bootstrap.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap_ranks.hpp"

namespace flashmoe::test {
namespace {

using fabric::Bootstrap;
using fabric::UniqueFd;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }

std::string text_of(const std::vector<std::byte>& bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

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

}  // namespace
}  // namespace flashmoe::test
