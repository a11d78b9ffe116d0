#include "io/safetensors.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include <bit>

#include "flashmoe/error.hpp"
#include "io/safetensors_types.hpp"
#include "io/safetensors_writer.hpp"
#include "support/safetensors_text.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe {
namespace {

using test::entry;
using test::safetensors_text;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::StartsWith;
using testing::ThrowsMessage;

class Safetensors : public testing::Test {
 protected:
  std::filesystem::path write(std::string_view header, std::size_t data_bytes) const {
    return folder_.write("a.safetensors", safetensors_text(header, data_bytes));
  }

  /// Expects the file to be refused with "FILE" replaced by its name.
  void expect_refused(std::string_view header, std::size_t data_bytes, std::string message) const {
    expect_refused_bytes(safetensors_text(header, data_bytes), std::move(message));
  }
  void expect_refused_bytes(std::string_view bytes, std::string message) const {
    const std::filesystem::path path = folder_.write("a.safetensors", bytes);
    for (std::size_t at = message.find("FILE"); at != message.npos; at = message.find("FILE", at + 1)) {
      message.replace(at, 4, path.string());
    }
    EXPECT_THAT([&] { SafetensorsFile file(path); }, ThrowsMessage<InvalidArgument>(message));
  }

  test::TempFolder folder_;
};

TEST_F(Safetensors, tensors_come_in_the_order_of_their_bytes) {
  const SafetensorsFile file(write("{" + entry("a", "F32", "[2,3]", "[8,32]") + "," +
                                       entry("b", "BF16", "[4]", "[0,8]") + R"(,"__metadata__":{"format":"pt"})" +
                                       "}  ",
                                   32));
  ASSERT_EQ(file.tensors().size(), 2u);
  EXPECT_EQ(file.tensors()[0].name, "b");
  EXPECT_EQ(file.tensors()[0].type, "BF16");
  EXPECT_THAT(file.tensors()[0].shape, ElementsAre(4));
  EXPECT_EQ(file.tensors()[0].data.size(), 8u);
  const StoredTensor* a = file.find("a");
  ASSERT_NE(a, nullptr);
  EXPECT_THAT(a->shape, ElementsAre(2, 3));
  EXPECT_EQ(a->data.data(), file.tensors()[0].data.data() + 8);
  EXPECT_EQ(file.find("c"), nullptr);
  EXPECT_EQ(file.find("__metadata__"), nullptr);
}

TEST_F(Safetensors, empty_tensors_scalars_and_files_without_tensors_are_right) {
  const SafetensorsFile file(write("{" + entry("none", "F32", "[0,9223372036854775807,4]", "[0,0]") + "," +
                                       entry("scalar", "F64", "[]", "[0,8]") + "}",
                                   8));
  EXPECT_EQ(file.find("none")->data.size(), 0u);
  EXPECT_THAT(file.find("scalar")->shape, IsEmpty());
  EXPECT_EQ(file.find("scalar")->data.size(), 8u);
  EXPECT_THAT(SafetensorsFile(write("{}", 0)).tensors(), IsEmpty());
}

TEST_F(Safetensors, types_of_fewer_bits_than_a_byte_are_known) {
  const SafetensorsFile file(
      write("{" + entry("f4", "F4", "[3,2]", "[0,3]") + "," + entry("f6", "F6_E2M3", "[4]", "[3,6]") + "}", 6));
  EXPECT_EQ(file.find("f4")->data.size(), 3u);
  expect_refused(
      "{" + entry("f4", "F4", "[3]", "[0,2]") + "}", 2,
      "tensor f4 of FILE takes 2 bytes by its data_offsets, but its type F4 and shape [3] need more than 64 bits "
      "can count or parts of a byte: fetch the file again");
}

TEST_F(Safetensors, missing_and_unreadable_files_are_refused) {
  const std::filesystem::path path = folder_ / "a.safetensors";
  const std::string name = path.string();
  EXPECT_THAT([&] { SafetensorsFile file(path); },
              ThrowsMessage<InvalidArgument>(name + " must be a readable file: No such file or directory"));
  std::filesystem::create_directory(path);
  EXPECT_THAT([&] { SafetensorsFile file(path); },
              ThrowsMessage<InvalidArgument>(name + " must be a regular file: it is a directory, a pipe or a device"));
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT([&] { SafetensorsFile file(path); },
              ThrowsMessage<InvalidArgument>(name + " must be a regular file: it is a directory, a pipe or a device"));
}

TEST_F(Safetensors, files_too_short_for_their_header_are_refused) {
  const std::string tail = "): it is cut short or no safetensors file, so fetch the file again";
  expect_refused_bytes("", "FILE (0 bytes) must hold 8 bytes of length and a header as long as they say (0" + tail);
  expect_refused_bytes("1234567",
                       "FILE (7 bytes) must hold 8 bytes of length and a header as long as they say (0" + tail);
  expect_refused_bytes(safetensors_text("{}", 0).substr(0, 9),
                       "FILE (9 bytes) must hold 8 bytes of length and a header as long as they say (2" + tail);
  expect_refused_bytes(
      std::string(8, '\xff') + "{}",
      "FILE (10 bytes) must hold 8 bytes of length and a header as long as they say (18446744073709551615" + tail);
}

TEST_F(Safetensors, a_header_that_is_no_json_object_is_refused) {
  expect_refused("", 0, "the header of FILE must be valid JSON, and ends too early, at byte 0: fetch the file again");
  expect_refused("[]", 0, "the header of FILE must be a JSON object, not an array: fetch the file again");
  expect_refused("{\"a\":", 0,
                 "the header of FILE must be valid JSON, and ends too early, at byte 5: fetch the file again");
}

TEST_F(Safetensors, a_header_longer_than_the_limit_is_refused) {
  expect_refused(
      "{}" + std::string(16 << 20, ' '), 0,
      "the header of FILE (16777218 bytes) must be at most 16777216 bytes of JSON: check that it is the right file");
}

TEST_F(Safetensors, deep_nesting_is_refused) {
  expect_refused("{\"a\":" + std::string(100000, '['), 0,
                 "the header of FILE must not nest objects and arrays deeper than 64: check that it is the right file");
  std::string objects;
  for (int i = 0; i < 100000; ++i) objects += "{\"a\":";
  expect_refused(objects, 0,
                 "the header of FILE must not nest objects and arrays deeper than 64: check that it is the right file");
}

TEST_F(Safetensors, a_header_of_too_many_values_is_refused) {
  std::string header = "{\"a\":[0";
  for (int i = 0; i < 4'000'000; ++i) header += ",0";
  expect_refused(header + "]}", 0,
                 "the header of FILE must hold at most 4000000 JSON values: check that it is the right file");
}

TEST_F(Safetensors, keys_given_twice_are_refused) {
  const std::string a = entry("a", "U8", "[1]", "[0,1]");
  expect_refused("{" + a + "," + a + "}", 1,
                 "the header of FILE must give every key of an object once, and gives a twice: fetch the file again");
  expect_refused(
      R"({"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}})", 1,
      "the header of FILE must give every key of an object once, and gives shape twice: fetch the file again");
}

TEST_F(Safetensors, metadata_is_an_object_of_strings) {
  expect_refused(R"({"__metadata__":{"format":1}})", 0,
                 "__metadata__ of the header of FILE must be an object of strings: fetch the file again");
  expect_refused(R"({"__metadata__":"pt"})", 0,
                 "__metadata__ of the header of FILE must be an object of strings: fetch the file again");
}

TEST_F(Safetensors, entries_with_missing_or_wrong_parts_are_refused) {
  expect_refused(R"({"a":1})", 0, "tensor a of FILE must be an object, not 1: fetch the file again");
  expect_refused(R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1,
                 "tensor a of FILE has no dtype: fetch the file again");
  expect_refused(R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1,
                 "tensor a of FILE has no shape: fetch the file again");
  expect_refused(R"({"a":{"dtype":"U8","shape":[1]}})", 1,
                 "tensor a of FILE has no data_offsets: fetch the file again");
  expect_refused(R"({"a":{"dtype":8,"shape":[1],"data_offsets":[0,1]}})", 1,
                 "tensor a of FILE has dtype 8, which must be a string: fetch the file again");
  expect_refused(
      "{" + entry("a", "F33", "[1]", "[0,1]") + "}", 1,
      "tensor a of FILE has dtype \"F33\", which the safetensors format does not know: fetch the file again");
  const std::string integers = " that must be a list of at most 32 integers from 0 to 2^63 - 1: fetch the file again";
  for (const char* shape : {"1", "{}", "[-1]", "[1.5]", "[true]", "[\"1\"]", "[9223372036854775808]", "[1e3]"}) {
    expect_refused("{" + entry("a", "U8", shape, "[0,1]") + "}", 1, "tensor a of FILE has a shape" + integers);
    expect_refused("{" + entry("a", "U8", "[1]", shape) + "}", 1, "tensor a of FILE has a data_offsets" + integers);
  }
  std::string many = "[1";
  for (int i = 0; i < 32; ++i) many += ",1";
  expect_refused("{" + entry("a", "U8", many + "]", "[0,1]") + "}", 1, "tensor a of FILE has a shape" + integers);
}

TEST_F(Safetensors, offsets_outside_the_file_are_refused) {
  const std::string wanted =
      ", which must be a begin and an end within the file's 4 bytes of data: fetch the file again";
  for (const char* offsets : {"[0, 5]", "[4, 8]", "[3, 1]", "[]", "[0]", "[0, 1, 2]", "[0, 9223372036854775807]"}) {
    expect_refused("{" + entry("a", "U8", "[4]", offsets) + "}", 4,
                   fmt::format("tensor a of FILE has data_offsets {}{}", offsets, wanted));
  }
}

TEST_F(Safetensors, offsets_that_do_not_fit_type_and_shape_are_refused) {
  expect_refused(
      "{" + entry("a", "F32", "[2,2]", "[0,12]") + "}", 12,
      "tensor a of FILE takes 12 bytes by its data_offsets, but its type F32 and shape [2, 2] need 16: fetch the "
      "file again");
  for (const char* shape : {"[9223372036854775807, 2]", "[4294967296, 4294967296, 4294967296]"}) {
    expect_refused(
        "{" + entry("a", "F32", shape, "[0,8]") + "}", 8,
        fmt::format("tensor a of FILE takes 8 bytes by its data_offsets, but its type F32 and shape {} need more "
                    "than 64 bits can count or parts of a byte: fetch the file again",
                    shape));
  }
}

TEST_F(Safetensors, gaps_and_overlaps_are_refused) {
  expect_refused(
      "{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[2,6]") + "}", 6,
      "tensor b of FILE must begin at byte 4 of the data, where the one before ends, not at byte 2: fetch the "
      "file again");
  expect_refused(
      "{" + entry("a", "U8", "[4]", "[0,4]") + "," + entry("b", "U8", "[4]", "[0,4]") + "}", 4,
      "tensor b of FILE must begin at byte 4 of the data, where the one before ends, not at byte 0: fetch the "
      "file again");
  expect_refused(
      "{" + entry("a", "U8", "[2]", "[2,4]") + "}", 4,
      "tensor a of FILE must begin at byte 0 of the data, where the one before ends, not at byte 2: fetch the "
      "file again");
  expect_refused("{" + entry("a", "U8", "[2]", "[0,2]") + "}", 4,
                 "the tensors of FILE must fill its 4 bytes of data, but end after 2: fetch the file again");
  expect_refused("{}", 4, "the tensors of FILE must fill its 4 bytes of data, but end after 0: fetch the file again");
}

TEST_F(Safetensors, a_file_replaced_by_a_shorter_one_is_refused) {
  const std::string header = "{" + entry("a", "U8", "[4096]", "[0,4096]") + "}";
  const std::string whole = safetensors_text(header, 4096);
  EXPECT_NO_THROW(SafetensorsFile(folder_.write("a.safetensors", whole)));
  expect_refused_bytes(
      whole.substr(0, whole.size() - 1),
      "tensor a of FILE has data_offsets [0, 4096], which must be a begin and an end within the file's 4095 "
      "bytes of data: fetch the file again");
}

TEST_F(Safetensors, names_in_messages_are_cut_and_printable) {
  const std::string name(500, '\x7f');
  const std::filesystem::path path = write("{\"" + name + "\":1}", 0);
  EXPECT_THAT([&] { SafetensorsFile file(path); },
              ThrowsMessage<InvalidArgument>(StartsWith("tensor " + std::string(120, '?') + "... of ")));
}

TEST_F(Safetensors, a_moved_mapping_stays_where_it_is) {
  MappedFile first(write("{}", 0));
  const std::span<const std::byte> bytes = first.bytes();
  const MappedFile second(std::move(first));
  EXPECT_EQ(second.bytes().data(), bytes.data());
  EXPECT_EQ(second.bytes().size(), 10u);
}

TEST_F(Safetensors, what_the_writer_writes_the_reader_reads) {
  const std::vector<float> floats = {1.0f, -2.0f, 3.5f};
  const std::vector<std::uint8_t> bytes = {7, 8, 9, 10, 11};
  const std::filesystem::path path = folder_ / "w.safetensors";
  write_safetensors(path,
                    {{.name = "z \"quoted\"", .type = "F32", .shape = {1, 3}, .data = std::as_bytes(std::span(floats))},
                     {.name = "a", .type = "U8", .shape = {5}, .data = std::as_bytes(std::span(bytes))},
                     {.name = "none", .type = "BF16", .shape = {0, 4}, .data = {}}});
  const SafetensorsFile file(path);
  ASSERT_EQ(file.tensors().size(), 3u);
  const StoredTensor* z = file.find("z \"quoted\"");
  ASSERT_NE(z, nullptr);
  EXPECT_THAT(z->shape, ElementsAre(1, 3));
  EXPECT_EQ(std::bit_cast<std::uintptr_t>(z->data.data()) % 8, 0u);
  EXPECT_EQ(std::memcmp(z->data.data(), floats.data(), 12), 0);
  EXPECT_EQ(std::memcmp(file.find("a")->data.data(), bytes.data(), 5), 0);
  EXPECT_THAT(file.find("none")->shape, ElementsAre(0, 4));
}

TEST_F(Safetensors, the_writer_refuses_what_does_not_fit) {
  const std::vector<float> floats(4);
  const std::span data = std::as_bytes(std::span(floats));
  const std::filesystem::path path = folder_ / "w.safetensors";
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{5}, {-4}, {2, 2, 2}}) {
    EXPECT_THROW(write_safetensors(path, {{.name = "a", .type = "F32", .shape = shape, .data = data}}),
                 InvalidArgument);
  }
  EXPECT_THROW(write_safetensors(path, {{.name = "a", .type = "F31", .shape = {4}, .data = data}}), InvalidArgument);
  const TensorToWrite a = {.name = "a", .type = "F32", .shape = {4}, .data = data};
  EXPECT_THAT([&] { write_safetensors(path, {a, a}); },
              ThrowsMessage<InvalidArgument>("tensor a must be written to " + path.string() + " once, not twice"));
  const std::filesystem::path nowhere = folder_ / "no/such/folder.safetensors";
  EXPECT_THAT(
      [&] { write_safetensors(nowhere, {a}); },
      ThrowsMessage<InvalidArgument>(nowhere.string() + " cannot be written: its folder must exist and have room"));
}

TEST(SafetensorsTypes, engine_types_have_their_names) {
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp32, DType::fp64}) {
    EXPECT_EQ(stored_dtype(stored_type(dtype)), dtype);
    EXPECT_EQ(stored_bytes(stored_type(dtype), {1}), dtype_bytes(dtype));
  }
  EXPECT_EQ(stored_type(DType::tf32), "F32");
  EXPECT_EQ(stored_dtype("I32"), std::nullopt);
}

}  // namespace
}  // namespace flashmoe
