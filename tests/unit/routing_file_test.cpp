// Routing specs and routings read from .npy files.
#include "io/routing_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "flashmoe/error.hpp"
#include "io/npy.hpp"
#include "support/temp_folder.hpp"

namespace flashmoe::test {
namespace {

using testing::HasSubstr;

const Problem kProblem{.num_ranks = 2, .num_experts = 4, .top_k = 2};

template <class T>
std::filesystem::path save(const std::filesystem::path& path, NpyType type, const std::vector<std::int64_t>& shape,
                           const std::vector<T>& values) {
  write_npy(path, type, shape, std::as_bytes(std::span(values)));
  return path;
}

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "accepted";
}

TEST(RoutingSpec, NamesAreParsed) {
  EXPECT_EQ(parse_routing_spec("uniform"), RoutingSpec{});
  EXPECT_EQ(parse_routing_spec("all-to-one"), RoutingSpec{.kind = RoutingKind::all_to_one});
  for (const auto& [text, exponent] : {std::pair{"zipf:1.2", 1.2}, {"zipf:0", 0.0}, {"zipf:1e1", 10.0}, {"zipf:100", 100.0}}) {
    EXPECT_EQ(parse_routing_spec(text), (RoutingSpec{.kind = RoutingKind::zipf, .zipf_exponent = exponent})) << text;
  }
}

TEST(RoutingSpec, FilesThatExistAreTaken) {
  const TempFolder folder;
  const std::string ids = folder.write("ids.npy", "").string();
  const std::string weights = folder.write("weights.npy", "").string();
  const std::string comma = folder.write("a,b.npy", "").string();
  EXPECT_EQ(parse_routing_spec(ids), (RoutingSpec{.kind = RoutingKind::file, .ids_file = ids}));
  EXPECT_EQ(parse_routing_spec(ids + "," + weights),
            (RoutingSpec{.kind = RoutingKind::file, .ids_file = ids, .weights_file = weights}));
  EXPECT_EQ(parse_routing_spec(comma), (RoutingSpec{.kind = RoutingKind::file, .ids_file = comma}));
}

TEST(RoutingSpec, OthersAreRefusedWithWhatIsAccepted) {
  for (const std::string text : {"", "unifrom", "zipf", "histogram:", "ids.npy,", "/", "."}) {
    EXPECT_EQ(message_of([&] { parse_routing_spec(text); }),
              "routing (" + text + ") must be uniform, zipf:S, all-to-one, or an existing "
              "histogram:COUNTS.json or IDS.npy[,WEIGHTS.npy]");
  }
  for (const std::string text : {"missing.npy", "missing.npy,weights.npy", "histogram:missing.npy"}) {
    EXPECT_EQ(message_of([&] { parse_routing_spec(text); }),
              "routing file missing.npy does not exist: give the path of one that does");
  }
  for (const std::string exponent : {"", "x", "1.2x", " 1", "-1", "101", "nan", "inf", "1e400"}) {
    EXPECT_EQ(message_of([&] { parse_routing_spec("zipf:" + exponent); }),
              "the exponent of routing (zipf:" + exponent + ") must be a number in 0..100, as in zipf:1.2");
  }
}

TEST(RoutingFile, IsTheWholeBatchOverRanksInOrder) {
  const TempFolder folder;
  const auto path = save<std::int32_t>(folder / "ids.npy", NpyType::int32, {3, 2}, {0, 1, 2, 3, -1, 3});
  const std::vector<RankRouting> ranks = generate_routing(parse_routing_spec(path.string()), kProblem, 1, {1, 2});
  EXPECT_EQ(ranks[0].topk_ids, (std::vector<std::int32_t>{0, 1}));
  EXPECT_EQ(ranks[1].topk_ids, (std::vector<std::int32_t>{2, 3, -1, 3}));
  EXPECT_EQ(ranks[1].topk_weights, std::vector<float>(4, 0.5f));
}

TEST(RoutingFile, OfSixtyFourBitIdsGivesTheSame) {
  const TempFolder folder;
  const auto narrow = save<std::int32_t>(folder / "a.npy", NpyType::int32, {2, 2}, {0, 3, -1, 2});
  const auto wide = save<std::int64_t>(folder / "b.npy", NpyType::int64, {2, 2}, {0, 3, -1, 2});
  EXPECT_EQ(read_routing(wide, {}, kProblem, 2).topk_ids, read_routing(narrow, {}, kProblem, 2).topk_ids);
}

TEST(RoutingFile, TakesWeightsFromASecondArray) {
  const TempFolder folder;
  const auto ids = save<std::int32_t>(folder / "ids.npy", NpyType::int32, {2, 2}, {0, 1, 2, 3});
  const auto floats = save<float>(folder / "w4.npy", NpyType::float32, {2, 2}, {0.1f, 0.2f, 0.3f, 0.4f});
  const auto doubles = save<double>(folder / "w8.npy", NpyType::float64, {2, 2}, {0.1, 0.2, 0.3, 0.4});
  const std::vector<float> expected = {0.1f, 0.2f, 0.3f, 0.4f};
  EXPECT_EQ(read_routing(ids, floats, kProblem, 2).topk_weights, expected);
  EXPECT_EQ(read_routing(ids, doubles, kProblem, 2).topk_weights, expected);
}

TEST(RoutingFile, OfNoTokensIsFine) {
  const TempFolder folder;
  const auto ids = save<std::int32_t>(folder / "ids.npy", NpyType::int32, {0, 2}, {});
  EXPECT_TRUE(read_routing(ids, {}, kProblem, 0).topk_ids.empty());
}

TEST(RoutingFile, ThatDoesNotFitIsRefused) {
  const TempFolder folder;
  const auto ids = save<std::int32_t>(folder / "ids.npy", NpyType::int32, {2, 2}, {0, 1, 2, 3});
  const auto read = [&](const std::filesystem::path& path, const std::filesystem::path& weights, std::int64_t num_tokens) {
    return message_of([&] { read_routing(path, weights, kProblem, num_tokens); });
  };
  EXPECT_EQ(read(ids, {}, 3), "topk_ids in " + ids.string() + " must have the shape [3][2] (tokens of all ranks, top_k), not [2][2]");
  const auto flat = save<std::int32_t>(folder / "flat.npy", NpyType::int32, {4}, {0, 1, 2, 3});
  EXPECT_THAT(read(flat, {}, 2), HasSubstr("not [4]"));
  const auto real = save<float>(folder / "real.npy", NpyType::float32, {2, 2}, {0, 1, 2, 3});
  EXPECT_EQ(read(real, {}, 2), "topk_ids in " + real.string() + " must be int32 or int64, not float32");
  EXPECT_EQ(read(ids, ids, 2), "topk_weights in " + ids.string() + " must be float32 or float64, not int32");
  const auto short_weights = save<float>(folder / "w.npy", NpyType::float32, {1, 2}, {1, 1});
  EXPECT_THAT(read(ids, short_weights, 2), HasSubstr("topk_weights in"));
}

TEST(RoutingFile, IdsOutsideTheExpertsAreRefusedEvenWhereThirtyTwoBitsWouldHideThem) {
  const TempFolder folder;
  for (const std::int64_t bad : {std::int64_t{4}, std::int64_t{-2}, std::int64_t{1} << 32, -(std::int64_t{1} << 32)}) {
    const auto path = save<std::int64_t>(folder / "ids.npy", NpyType::int64, {2, 2}, {0, 1, bad, 3});
    EXPECT_EQ(message_of([&] { read_routing(path, {}, kProblem, 2); }),
              "topk_ids[1][0] (" + std::to_string(bad) + ") in " + path.string() +
                  " must be -1 (masked) or an expert in 0..3");
  }
}

}  // namespace
}  // namespace flashmoe::test
