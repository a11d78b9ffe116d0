// Output files: whole or not at all.
#include "io/new_file.hpp"

#include <gmock/gmock.h>

#include <fstream>
#include <iterator>
#include <string>

#include "flashmoe/error.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe {
namespace {

using test::TempFolder;
using testing::ThrowsMessage;

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::ptrdiff_t num_files(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(NewFile, replaces_what_was_there_and_leaves_nothing_else) {
  const TempFolder folder;
  const auto path = folder.write("y.npy", "old and longer");
  write_new_file(path, [](std::ostream& file) { file << "new"; });
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(num_files(path.parent_path()), 1);
}

TEST(NewFile, the_old_file_stays_until_the_new_one_is_whole) {
  const TempFolder folder;
  const auto path = folder.write("y.npy", "old");
  write_new_file(path, [&](std::ostream& file) {
    file << "half" << std::flush;
    EXPECT_EQ(content_of(path), "old");
  });
}

TEST(NewFile, a_failed_write_leaves_the_old_file_and_no_remains) {
  const TempFolder folder;
  const auto path = folder.write("y.npy", "old");
  EXPECT_THAT([&] { write_new_file(path, [](std::ostream& file) { file.setstate(std::ios::badbit); }); },
              ThrowsMessage<InvalidArgument>(path.string() + " cannot be written: its folder must exist and have room"));
  EXPECT_EQ(content_of(path), "old");
  EXPECT_EQ(num_files(path.parent_path()), 1);
}

TEST(NewFile, links_are_followed) {
  const TempFolder folder;
  const auto path = folder.write("y.npy", "old");
  std::filesystem::create_symlink(path, folder / "link.npy");
  write_new_file(folder / "link.npy", [](std::ostream& file) { file << "new"; });
  EXPECT_EQ(content_of(path), "new");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.npy"));
}

TEST(NewFile, devices_are_written_to) {
  EXPECT_NO_THROW(write_new_file("/dev/null", [](std::ostream& file) { file << "gone"; }));
  EXPECT_FALSE(std::filesystem::is_regular_file("/dev/null"));
}

}  // namespace
}  // namespace flashmoe
