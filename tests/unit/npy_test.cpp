// .npy files: what NumPy writes, what we write, and what an enemy writes.
#include "io/npy.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <bit>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "core/counter_rng.hpp"
#include "flashmoe/error.hpp"
#include "io/npy_header.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A file of format version `major` with the given header text and data.
std::string npy_text(std::string header, const std::string& data, char major = 1) {
  std::string text = "\x93NUMPY";
  text += major;
  text += '\0';
  for (int byte = 0; byte < (major == 1 ? 2 : 4); ++byte) text += static_cast<char>(header.size() >> (8 * byte) & 0xff);
  return text + header + data;
}

std::string floats(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

std::string message_of(const std::filesystem::path& path) {
  try {
    read_npy(path);
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Npy, ReadsWhatNumpyWrites) {
  // numpy.save of numpy.arange(6, dtype='<f4').reshape(2, 3)
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  header.append(128 - 10 - header.size() - 1, ' ');
  header += '\n';
  const TempFolder folder;
  const NpyArray array = read_npy(folder.write("a.npy", npy_text(header, floats({0, 1, 2, 3, 4, 5}))));
  EXPECT_EQ(array.type, NpyType::float32);
  EXPECT_EQ(array.shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(array.num_elements(), 6);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(array.as<float>()[i], static_cast<float>(i));
}

TEST(Npy, WritesByteForByteWhatNumpyWould) {
  const TempFolder folder;
  const std::vector<float> values = {0, 1, 2, 3, 4, 5};
  write_npy(folder / "a.npy", NpyType::float32, {2, 3}, std::as_bytes(std::span(values)));
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  header.append(128 - 10 - header.size() - 1, ' ');
  EXPECT_EQ(content_of(folder / "a.npy"), npy_text(header + '\n', floats(values)));
}

TEST(Npy, HeaderFormsOfEveryVersionAndSpellingAreRead) {
  const TempFolder folder;
  const std::string data = floats({7});
  for (const std::string header : {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }",
                                   "{\"shape\":(1,1),\"descr\":\"<f4\",\"fortran_order\":False}",
                                   "{ 'fortran_order': False , 'shape': ( ) , 'descr': '<f4' }\n"}) {
    for (const char major : {1, 2, 3}) {
      const NpyArray array = read_npy(folder.write("a.npy", npy_text(header, data, major)));
      EXPECT_EQ(array.num_elements(), 1) << header;
      EXPECT_EQ(array.as<float>()[0], 7.0f);
    }
  }
}

TEST(Npy, EveryTypeMakesTheRoundTrip) {
  const TempFolder folder;
  const CounterRng rng(1, 0);
  for (const NpyType type : {NpyType::int32, NpyType::int64, NpyType::bits16, NpyType::float16, NpyType::float32, NpyType::float64}) {
    for (const std::vector<std::int64_t>& shape :
         {std::vector<std::int64_t>{}, {0}, {5}, {3, 4}, {0, 7}, {2, 0, 3}, {2, 3, 4, 5}}) {
      std::size_t count = 1;
      for (const std::int64_t dimension : shape) count *= static_cast<std::size_t>(dimension);
      std::vector<std::byte> data(count * element_bytes(type));
      for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(rng.bits(i));
      write_npy(folder / "a.npy", type, shape, data);
      EXPECT_EQ(content_of(folder / "a.npy").size() % 64, data.size() % 64) << "data starts aligned";
      const NpyArray array = read_npy(folder / "a.npy");
      EXPECT_EQ(array.type, type);
      EXPECT_EQ(array.shape, shape);
      EXPECT_EQ(array.data, data);
    }
  }
}

TEST(Npy, Bf16IsSixteenBitsUnderAnyOfItsNames) {
  const TempFolder folder;
  for (const std::string descr : {"<u2", "<V2", "|V2"}) {
    const std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': (1,), }";
    const NpyArray array = read_npy(folder.write("a.npy", npy_text(header, "\x80\x3f")));
    EXPECT_EQ(array.type, NpyType::bits16);
    EXPECT_EQ(array.as<std::uint16_t>()[0], 0x3f80);
  }
}

// ---- refusals

struct Refusal {
  std::string name;
  std::string content;
  std::string reason;
};

class NpyRefusal : public testing::TestWithParam<Refusal> {};

TEST_P(NpyRefusal, NamesTheFileAndTheReason) {
  const TempFolder folder;
  const std::filesystem::path path = folder.write("bad.npy", GetParam().content);
  EXPECT_EQ(message_of(path), path.string() + " cannot be read as a NumPy array: " + GetParam().reason);
}

std::string with_header(const std::string& header) { return npy_text(header, floats({1, 2})); }
std::string with_shape(const std::string& shape) {
  return with_header("{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + "}");
}
std::string with_type(const std::string& descr) {
  return with_header("{'descr': '" + descr + "', 'fortran_order': False, 'shape': (2,)}");
}

const std::string kOther = "must fill the rest of the file: ";
INSTANTIATE_TEST_SUITE_P(
    , NpyRefusal,
    testing::Values(
        Refusal{"empty", "", "it must be a .npy file, but it is too short for one"},
        Refusal{"other_format", "PK\x03\x04 a zip file", "it must be a .npy file, but it does not start like one"},
        Refusal{"version", npy_text("{}", "", 4), "its format version (4) must be 1, 2 or 3"},
        Refusal{"no_length", "\x93NUMPY\x02" + std::string(3, '\0'), "it is shorter than its header says; it must be complete"},
        Refusal{"short_header", "\x93NUMPY\x01" + std::string(1, '\0') + "\xff\x01{", "it is shorter than its header says; it must be complete"},
        Refusal{"absurd_header", "\x93NUMPY\x02" + std::string(1, '\0') + "\xff\xff\xff\xff{}", "its header (4294967295 bytes) must be at most 65536 bytes"},
        Refusal{"no_dict", with_header("descr"), "its header must have '{' at character 0"},
        Refusal{"missing_key", with_header("{'descr': '<f4', 'shape': (2,)}"), "its header must have the keys descr, fortran_order and shape"},
        Refusal{"unknown_key", with_header("{'descr': '<f4', 'evil': 1}"), "its header's keys must be descr, fortran_order and shape, not 'evil'"},
        Refusal{"repeated_key", with_header("{'descr': '<f4', 'descr': '<f8'}"), "its header must have 'descr' once"},
        Refusal{"open_string", with_header("{'descr: 1"), "its header must have the end of a string at character 2"},
        Refusal{"structured", with_header("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,)}"), "its header must have a string at character 10"},
        Refusal{"no_boolean", with_header("{'fortran_order': 0}"), "its header must have True or False at character 18"},
        Refusal{"text_after", with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)} x"), "its header must have nothing more at character 56"},
        Refusal{"fortran", with_header("{'descr': '<f4', 'fortran_order': True, 'shape': (2,)}"), "it must be in C order, but it is in Fortran order; save numpy.ascontiguousarray(array)"},
        Refusal{"big_endian", with_type(">f4"), "its element type must be one of <i4, <i8, <u2, <f2, <f4, <f8, or V2 for bf16, not '>f4'"},
        Refusal{"unreadable_type", with_type(std::string(100, 'x') + "\x07"), "its element type must be one of <i4, <i8, <u2, <f2, <f4, <f8, or V2 for bf16, not '" + std::string(48, 'x') + "...'"},
        Refusal{"negative", with_shape("(-2,)"), "its header must have a dimension of 0 or more that fits 64 bits at character 51"},
        Refusal{"huge_dimension", with_shape("(99999999999999999999,)"), "its header must have a dimension of 0 or more that fits 64 bits at character 51"},
        Refusal{"overflow", with_shape("(4611686018427387904, 4)"), "its array of type float32 " + kOther + "8 bytes after the header, but its shape needs more than 64 bits can count"},
        Refusal{"wraps_to_zero", with_shape("(4294967296, 4294967296)"), "its array of type float32 " + kOther + "8 bytes after the header, but its shape needs more than 64 bits can count"},
        Refusal{"truncated", with_shape("(3,)"), "its array of type float32 " + kOther + "8 bytes after the header, but its shape needs 12"},
        Refusal{"longer", with_shape("(1,)"), "its array of type float32 " + kOther + "8 bytes after the header, but its shape needs 4"},
        Refusal{"terabytes", with_shape("(1099511627776,)"), "its array of type float32 " + kOther + "8 bytes after the header, but its shape needs 4398046511104"}),
    [](const auto& test) { return test.param.name; });

TEST(NpyRefusals, TooManyDimensions) {
  std::string shape = "(";
  for (int i = 0; i < 33; ++i) shape += "1, ";
  const TempFolder folder;
  EXPECT_THAT(message_of(folder.write("a.npy", with_shape(shape + ")"))), HasSubstr("at most 32 dimensions"));
}

TEST(NpyRefusals, FilesThatAreNone) {
  const TempFolder folder;
  EXPECT_THAT(message_of(folder / "missing.npy"), AllOf(HasSubstr("missing.npy"), HasSubstr("an existing regular file")));
  EXPECT_THAT(message_of(folder / "."), HasSubstr("an existing regular file"));
  const std::filesystem::path pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(message_of(pipe), HasSubstr("an existing regular file")) << "and no wait for a writer";
}

TEST(NpyRefusals, WritingWhatDoesNotFitOrWhereNothingCanBe) {
  const TempFolder folder;
  const std::vector<float> values(6);
  const auto bytes = std::as_bytes(std::span(values));
  EXPECT_THROW(write_npy(folder / "a.npy", NpyType::float32, {7}, bytes), InvalidArgument);
  EXPECT_THROW(write_npy(folder / "a.npy", NpyType::float64, {6}, bytes), InvalidArgument);
  EXPECT_THROW(write_npy(folder / "a.npy", NpyType::float32, {std::int64_t{1} << 62, 4}, bytes), InvalidArgument);
  EXPECT_FALSE(std::filesystem::exists(folder / "a.npy"));
  EXPECT_THROW(write_npy(folder / "no_folder/a.npy", NpyType::float32, {6}, bytes), InvalidArgument);
}

// ---- fuzz: an InvalidArgument or an array that fits its file, nothing else

TEST(NpyFuzz, EveryTruncationIsRefused) {
  const TempFolder folder;
  const std::string content = with_shape("(2,)");
  for (std::size_t length = 0; length < content.size(); ++length) {
    EXPECT_NE(message_of(folder.write("fuzz.npy", content.substr(0, length))), "accepted") << length;
  }
  EXPECT_EQ(message_of(folder.write("fuzz.npy", content)), "accepted");
}

// `text` with one to four bytes changed or pieces of headers put in.
std::string damaged(std::string text, std::uint64_t seed) {
  const std::string pieces[] = {"'", "\"", "{", "}", "(", ")", ",", ":", "9223372036854775807", "-1", "True", "'shape': ("};
  const CounterRng rng(seed, 0);
  for (std::uint64_t change = 0; change <= rng.below(0, 4); ++change) {
    const std::uint64_t at = rng.below(10 + 3 * change, text.size());
    if (rng.below(11 + 3 * change, 2) == 0) {
      text[at] = static_cast<char>(rng.bits(12 + 3 * change));
    } else {
      text.insert(at, pieces[rng.below(12 + 3 * change, std::size(pieces))]);
    }
  }
  return text;
}

TEST(NpyFuzz, DamagedHeadersDoNoHarm) {
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    try {
      const NpyHeader header = parse_npy_header(damaged("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }", seed));
      EXPECT_LE(header.shape.size(), 32u);
      for (const std::int64_t dimension : header.shape) EXPECT_GE(dimension, 0);
      ++accepted;
    } catch (const InvalidArgument&) {
    }
  }
  EXPECT_GT(accepted, 100) << "some damage leaves a header";
  EXPECT_LT(accepted, 10000) << "most does not";
}

TEST(NpyFuzz, DamagedFilesDoNoHarm) {
  const TempFolder folder;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const std::string content = damaged(with_shape("(2,)"), seed);
    try {
      EXPECT_LE(read_npy(folder.write("fuzz.npy", content)).data.size(), content.size());
    } catch (const InvalidArgument&) {
    }
  }
}

}  // namespace
}  // namespace flashmoe::test
