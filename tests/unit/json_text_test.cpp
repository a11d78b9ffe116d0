#include "core/json_text.hpp"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <chrono>
#include <nlohmann/json.hpp>

#include "flashmoe/error.hpp"

namespace flashmoe {
namespace {

using testing::ThrowsMessage;

TEST(JsonText, brackets_inside_strings_do_not_nest) {
  const nlohmann::json value = parse_json(R"({"[[[[": "{{{\"[[[", "b\\": ["]"]})", "text", {.depth = 2});
  EXPECT_EQ(value["[[[["], "{{{\"[[[");
  EXPECT_EQ(value["b\\"][0], "]");
}

TEST(JsonText, a_key_may_stand_once_in_an_object) {
  EXPECT_NO_THROW(parse_json(R"([{"a": 1, "b": {"a": 2}}, {"a": 3}])", "text"));
  EXPECT_THAT([] { parse_json(R"({"a": 1, "b": 2, "a": 3})", "text"); },
              ThrowsMessage<InvalidArgument>("text must give every key of an object once, and gives a twice: fetch the "
                                             "file again"));
}

TEST(JsonText, depth_and_length_limits_are_inclusive) {
  EXPECT_NO_THROW(parse_json("[{\"a\": [[]]}, [[[]]]]", "text", {.depth = 4}));
  EXPECT_THAT(
      [] { parse_json("[{\"a\": [[]]}, [[[]]]]", "text", {.depth = 3}); },
      ThrowsMessage<InvalidArgument>("text must not nest objects and arrays deeper than 3: check that it is the "
                                     "right file"));
  EXPECT_NO_THROW(parse_json("[1, 2]", "text", {.bytes = 6}));
  EXPECT_THAT(
      [] { parse_json("[1, 2]", "text", {.bytes = 5}); },
      ThrowsMessage<InvalidArgument>("text (6 bytes) must be at most 5 bytes of JSON: check that it is the right "
                                     "file"));
}

TEST(JsonText, a_list_of_many_objects_does_not_take_quadratic_time) {
  std::string text = "[{}";
  while (text.size() < 2000000) text += ",{}";
  text += ']';
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(parse_json(text, "text").size(), (text.size() - 1) / 3);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}

TEST(JsonText, invalid_utf8_is_refused) {
  EXPECT_THAT([] { parse_json("[\"\xff\"]", "text"); },
              ThrowsMessage<InvalidArgument>("text must be valid JSON, and is not from byte 3 of 5 on: fetch the file "
                                             "again"));
}

TEST(JsonText, values_are_described_in_a_few_printable_characters) {
  EXPECT_EQ(describe(nlohmann::json::parse("[1]")), "an array");
  EXPECT_EQ(describe(nlohmann::json::parse("{}")), "an object");
  EXPECT_EQ(describe(nlohmann::json::parse("null")), "null");
  EXPECT_EQ(describe(nlohmann::json::parse("-1.5")), "-1.5");
  EXPECT_EQ(describe(nlohmann::json::parse(R"("tab\tbell\u0007")")), "\"tab?bell?\"");
  const std::string shown(48, 'x');
  EXPECT_EQ(describe(shown + "x"), fmt::format("\"{}...\"", shown));
}

}  // namespace
}  // namespace flashmoe
