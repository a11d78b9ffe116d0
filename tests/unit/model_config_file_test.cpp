// Configs from files: what stands for one, and what cannot be read.
#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "flashmoe/error.hpp"
#include "flashmoe/model_config.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe {
namespace {

using test::TempFolder;
using testing::ThrowsMessage;

std::string copy_fixture(const TempFolder& folder) {
  std::filesystem::copy_file("fixtures/configs/mixtral-8x7b.json", folder / "config.json");
  return (folder / "config.json").string();
}

TEST(ModelConfigFile, a_directory_stands_for_its_config) {
  const TempFolder folder;
  const std::string file = copy_fixture(folder);
  EXPECT_EQ(load_model_config(folder / ""), load_model_config(file));
  EXPECT_EQ(load_model_config(folder / "").name, file);
}

TEST(ModelConfigFile, what_cannot_be_read_is_refused) {
  const TempFolder folder;
  const std::string missing = (folder / "config.json").string();
  const std::string remedy = ": name a config.json or a directory that holds one";
  EXPECT_THAT([&] { load_model_config(missing); }, ThrowsMessage<InvalidArgument>(missing + " must exist" + remedy));
  EXPECT_THAT([&] { load_model_config(folder / ""); }, ThrowsMessage<InvalidArgument>(missing + " must exist" + remedy));
  const std::string pipe = (folder / "pipe").string();  // opening it would wait for a writer for ever
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT([&] { load_model_config(pipe); },
              ThrowsMessage<InvalidArgument>(pipe + " must be a regular file" + remedy));
  EXPECT_THROW(load_model_config("/dev/zero"), InvalidArgument);
}

TEST(ModelConfigFile, a_huge_file_is_refused_without_reading_it) {
  const TempFolder folder;
  const std::string path = folder.write("config.json", "{").string();
  std::filesystem::resize_file(path, std::uintmax_t{1} << 40);  // sparse
  EXPECT_THAT(
      [&] { load_model_config(path); },
      ThrowsMessage<InvalidArgument>(path + " (16777217 bytes) must be at most 16777216 bytes of JSON: check that "
                                            "it is the right file"));
}

TEST(ModelConfigFile, an_unreadable_file_is_refused) {
  const TempFolder folder;
  const std::string path = copy_fixture(folder);
  std::filesystem::permissions(path, std::filesystem::perms::none);
  if (access(path.c_str(), R_OK) == 0) GTEST_SKIP() << "this user may read any file";
  EXPECT_THAT([&] { load_model_config(path); },
              ThrowsMessage<InvalidArgument>(path + " must be readable: check its permissions"));
}

}  // namespace
}  // namespace flashmoe
