// Goal: a worker pushes what sync.compression says, for the tables that it
// says, and what a code loses comes later.
#include "common/compress/gradient_compressor.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/compress/compression_config.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"

namespace slackline::gradient_compressor_test {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kElements = 8192;
constexpr int64_t kShardElements = 65536;

config::ClusterConfig ConfigOf(const std::string& sync,
                               int64_t shard_elements = kShardElements) {
  config::ClusterConfig config;
  SL_CHECK(google::protobuf::TextFormat::ParseFromString(sync,
                                                         config.mutable_sync()),
           sync);
  config.mutable_limits()->set_shard_kib(
      static_cast<int32_t>(shard_elements * 4 / 1024));
  return config;
}

std::vector<wire::Table> Tables() {
  std::vector<wire::Table> tables(3);
  tables[0].set_name("first.weight");
  tables[0].add_shape(kElements);
  tables[1].set_name("first.bias");
  tables[1].add_shape(64);
  tables[2].set_name("second.weight");
  tables[2].add_shape(kElements);
  return tables;
}

absl::StatusOr<GradientCompressor> Create(const std::string& sync,
                                          int rank = 0) {
  return GradientCompressor::Create(ConfigOf(sync), Tables(), Rank{rank});
}

GradientCompressor CreateGood(const std::string& sync, int rank = 0) {
  absl::StatusOr<GradientCompressor> compressor = Create(sync, rank);
  SL_CHECK(compressor.ok(), compressor.status().ToString());
  return *std::move(compressor);
}

Payload PayloadOf(const std::vector<float>& values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

std::vector<float> Normals(uint64_t seed) {
  Rng rng(seed);
  std::vector<float> values(kElements);
  for (float& value : values) value = static_cast<float>(rng.Normal());
  return values;
}

std::vector<float> Pushed(const CodedGradient& gradient,
                          size_t elements = kElements) {
  const Payload floats = FloatsOf(gradient, elements);
  std::vector<float> values(elements);
  std::memcpy(values.data(), floats.data(), floats.size());
  return values;
}

TEST(GradientCompressor, WithoutAnEntryGradientsAreAsTheyAre) {
  GradientCompressor compressor = CreateGood("");
  const Payload gradient = PayloadOf(Normals(1));
  const CodedGradient pushed = compressor.Compress(TableId{0}, 0, gradient);
  EXPECT_TRUE(pushed.code.whole());
  EXPECT_EQ(pushed.bytes.data(), gradient.data());
  EXPECT_EQ(compressor.bytes_pushed(), compressor.bytes());
}

TEST(GradientCompressor, TheFirstEntryThatNamesATableCounts) {
  GradientCompressor compressor = CreateGood(
      "compression { table: 'second.*' none {} } compression { int8 {} }");
  const auto kind = [&](int table, size_t elements) {
    return compressor
        .Compress(TableId{table}, 0, PayloadOf(std::vector<float>(elements)))
        .code.kind;
  };
  EXPECT_EQ(kind(0, kElements), wire::Encoding::INT8);
  EXPECT_EQ(kind(1, 64), wire::Encoding::FLOAT32);  // Too small.
  EXPECT_EQ(kind(2, kElements), wire::Encoding::FLOAT32);
  EXPECT_EQ(compressor.bytes(), 4 * (2 * kElements + 64));
  EXPECT_EQ(compressor.bytes_pushed(),
            kElements / 256 * 260 + 4 * (kElements + 64));
}

TEST(PulledAs, IsAsTheFirstEntryThatFitsSays) {
  const auto config = ConfigOf(
      "compression { table: 'first.*' parameters: BFLOAT16 } "
      "compression { int8 {} parameters: FLOAT16 min_elements: 1025 }");
  wire::Table table;
  table.add_shape(1024);
  table.set_name("first.weight");
  EXPECT_EQ(PulledAs(config.sync(), table), wire::Encoding::BFLOAT16);
  table.set_shape(0, 1023);
  EXPECT_EQ(PulledAs(config.sync(), table), wire::Encoding::FLOAT32) << "small";
  table.set_name("second.weight");
  table.set_shape(0, 1025);
  EXPECT_EQ(PulledAs(config.sync(), table), wire::Encoding::FLOAT16);
  EXPECT_EQ(PulledAs(ConfigOf("compression { int8 {} }").sync(), table),
            wire::Encoding::FLOAT32);
}

TEST(GradientCompressor, BlocksEndWhereShardsDo) {
  for (const int64_t shard : {256, 768, 1280, 65536}) {
    auto compressor = GradientCompressor::Create(
        ConfigOf("compression { top_k { ratio: 0.01 } }", shard), Tables(),
        Rank{0});
    ASSERT_TRUE(compressor.ok()) << compressor.status();
    const GradientCode code =
        compressor->Compress(TableId{0}, 0, PayloadOf(Normals(1))).code;
    EXPECT_EQ(shard % code.block, 0) << shard;
    EXPECT_GE(code.kept, 1);
  }
}

TEST(GradientCompressor, WhatIsLostComesLater) {
  for (const char* const method :
       {"bfloat16 {}", "float16 {}", "int8 {}", "sign {}",
        "top_k { ratio: 0.05 }", "random_k { ratio: 0.05 }"}) {
    SCOPED_TRACE(method);
    GradientCompressor with =
        CreateGood(absl::StrCat("compression { ", method, " }"));
    GradientCompressor without = CreateGood(
        absl::StrCat("compression { ", method, " error_feedback: false }"));
    // The same gradient again and again: its sum is what has to arrive.
    const std::vector<float> gradient = Normals(7);
    constexpr int kSteps = 400;
    std::vector<double> sum_with(kElements);
    std::vector<double> sum_without(kElements);
    for (Clock clock = 0; clock < kSteps; ++clock) {
      const std::vector<float> a =
          Pushed(with.Compress(TableId{0}, clock, PayloadOf(gradient)));
      const std::vector<float> b =
          Pushed(without.Compress(TableId{0}, clock, PayloadOf(gradient)));
      for (size_t i = 0; i < gradient.size(); ++i) {
        sum_with[i] += a[i];
        sum_without[i] += b[i];
      }
    }
    double lost_with = 0;
    double lost_without = 0;
    double all = 0;
    for (size_t i = 0; i < gradient.size(); ++i) {
      const double sum = static_cast<double>(gradient[i]) * kSteps;
      lost_with += std::fabs(sum - sum_with[i]);
      lost_without += std::fabs(sum - sum_without[i]);
      all += std::fabs(sum);
    }
    EXPECT_LT(lost_with, lost_without / 4);
    EXPECT_LT(lost_with, all * 0.1);
  }
}

TEST(GradientCompressor, AnotherOneGoesOnWithWhatIsKept) {
  const std::string sync = "compression { top_k { ratio: 0.05 } }";
  GradientCompressor first = CreateGood(sync);
  EXPECT_TRUE(first.remembers());
  EXPECT_THAT(first.Residuals(), IsEmpty());
  const auto push = [](GradientCompressor& compressor, Clock clock) {
    return Pushed(compressor.Compress(
        TableId{0}, clock, PayloadOf(Normals(static_cast<uint64_t>(clock)))));
  };
  for (Clock clock = 0; clock < 3; ++clock) push(first, clock);
  const auto kept = first.Residuals();
  ASSERT_THAT(kept, SizeIs(1));
  EXPECT_EQ(kept[0].table, TableId{0});
  GradientCompressor second = CreateGood(sync);
  GradientCompressor anew = second;
  ASSERT_TRUE(second.GoOnWith(kept).ok());
  const std::vector<float> next = push(first, 3);
  EXPECT_EQ(push(second, 3), next);
  EXPECT_NE(push(anew, 3), next);

  GradientCompressor whole = CreateGood("");
  EXPECT_FALSE(whole.remembers());
  EXPECT_TRUE(whole.GoOnWith(kept).ok()) << "the config is another one";
  EXPECT_THAT(whole.Residuals(), IsEmpty());
  for (const GradientCompressor::Residual& wrong :
       {GradientCompressor::Residual{TableId{0}, PayloadOf({1, 2})},
        GradientCompressor::Residual{TableId{7}, kept[0].floats},
        GradientCompressor::Residual{TableId{-1}, kept[0].floats}}) {
    EXPECT_TRUE(absl::IsInvalidArgument(second.GoOnWith({wrong})));
  }
  EXPECT_EQ(push(second, 4), push(first, 4)) << "and nothing happened";
}

TEST(GradientCompressor, AGradientWithANanIsPushedAsItIsAndHurtsNoOther) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    GradientCompressor compressor =
        CreateGood("compression { top_k { ratio: 0.01 } }");
    GradientCompressor undisturbed = compressor;
    const auto step = [](GradientCompressor& c, Clock clock) {
      return Pushed(c.Compress(
          TableId{0}, clock, PayloadOf(Normals(static_cast<uint64_t>(clock)))));
    };
    EXPECT_EQ(step(compressor, 0), step(undisturbed, 0));
    std::vector<float> with_bad = Normals(1);
    with_bad[4000] = bad;
    const Payload gradient = PayloadOf(with_bad);
    const CodedGradient pushed = compressor.Compress(TableId{0}, 1, gradient);
    EXPECT_TRUE(pushed.code.whole());
    EXPECT_EQ(pushed.bytes.data(), gradient.data());
    EXPECT_EQ(step(compressor, 2), step(undisturbed, 2));
  }
}

TEST(GradientCompressor, WhatIsTooLargeForACodeIsPushedAsItIs) {
  GradientCompressor compressor = CreateGood("compression { float16 {} }");
  std::vector<float> gradient = Normals(1);
  gradient[5] = 1e6;
  EXPECT_EQ(Pushed(compressor.Compress(TableId{0}, 0, PayloadOf(gradient))),
            gradient);
  const CodedGradient next =
      compressor.Compress(TableId{0}, 1, PayloadOf(Normals(2)));
  EXPECT_EQ(next.code.kind, wire::Encoding::FLOAT16);
}

TEST(GradientCompressor, WorkersAndStepsKeepOtherElements) {
  const std::string sync = "compression { random_k { ratio: 0.01 } }";
  GradientCompressor first = CreateGood(sync, 0);
  GradientCompressor again = CreateGood(sync, 0);
  GradientCompressor second = CreateGood(sync, 1);
  const Payload gradient = PayloadOf(Normals(1));
  const std::vector<float> pushed =
      Pushed(first.Compress(TableId{0}, 0, gradient));
  EXPECT_EQ(Pushed(again.Compress(TableId{0}, 0, gradient)), pushed);
  EXPECT_NE(Pushed(second.Compress(TableId{0}, 0, gradient)), pushed);
  EXPECT_NE(Pushed(again.Compress(TableId{0}, 1, gradient)), pushed);
}

TEST(GradientCompressor, WhatCannotBeIsRefusedByName) {
  const auto error = [](const std::string& sync) {
    return std::string(Create(sync).status().message());
  };
  EXPECT_THAT(error("compression { table: '*.wait' sign {} }"),
              HasSubstr("sync.compression[0].table: \"*.wait\" fits no table "
                        "of the model; they are first.weight, first.bias"));
  EXPECT_TRUE(Create("compression { parameters: FLOAT16 }").ok());
  EXPECT_THAT(error("compression {}"),
              HasSubstr("sync.compression[0]: has no method; one of none,"));
  for (const char* const ratio : {"0", "-1", "1.5", "nan", "inf"}) {
    EXPECT_THAT(
        error(absl::StrCat("compression { top_k { ratio: ", ratio, " } }")),
        HasSubstr("sync.compression[0].top_k.ratio: value is "));
  }
  EXPECT_THAT(error("compression { random_k {} }"),
              HasSubstr("sync.compression[0].random_k.ratio: is missing"));
  EXPECT_THAT(error("compression { int8 {} min_elements: -1 }"),
              HasSubstr("sync.compression[0].min_elements: value is -1"));
}

}  // namespace slackline::gradient_compressor_test
