// Goal: inputs are normalised by the training inputs as a naive twin does it,
// and the hash of a data set changes with everything that training sees.
#include "worker/data/data_split.h"

#include <cmath>
#include <vector>

#include "common/rng.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "tests/unit/dataset_rows.h"
#include "worker/data/load_data.h"

namespace slackline::data_split_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

config::Normalisation Parse(const std::string& text) {
  config::Normalisation config;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &config))
      << text;
  return config;
}

constexpr ImageShape kImage = {.channels = 3, .rows = 2, .columns = 2};
constexpr int64_t kFeatures = 12;

RawData Raw(Inputs inputs, std::vector<double> labels) {
  return {.inputs = std::move(inputs),
          .features = kFeatures,
          .image = kImage,
          .labels = std::move(labels),
          .label_place = [](int64_t row) { return std::to_string(row); },
          .source = "the source",
          .description = "examples"};
}

std::vector<double> SomeLabels(int64_t examples) {
  std::vector<double> labels;
  for (int64_t i = 0; i < examples; ++i)
    labels.push_back(static_cast<double>(i % 3));
  return labels;
}

// Random inputs of each kind, one of whose places is always the same.
RawData RandomData(const std::string& kind, int64_t examples, uint64_t seed) {
  Rng rng(seed);
  if (kind == "coded") {
    CodedRows rows{.codes = {}, .values = {ByteValues()}};
    for (int64_t i = 0; i < examples * kFeatures; ++i)
      rows.codes.push_back(i % kFeatures == 5 ? 7 : rng.Below(256));
    return Raw(std::move(rows), SomeLabels(examples));
  }
  if (kind == "dense") {
    DenseRows rows;
    for (int64_t i = 0; i < examples * kFeatures; ++i)
      rows.values.push_back(
          i % kFeatures == 5 ? 0.1f : static_cast<float>(3 + rng.Normal()));
    return Raw(std::move(rows), SomeLabels(examples));
  }
  SparseRows rows;
  for (int64_t i = 0; i < examples; ++i) {
    for (int32_t column = 0; column < kFeatures; ++column) {
      if (column == 5 || !rng.Chance(0.3)) continue;
      rows.column.push_back(column);
      rows.value.push_back(static_cast<float>(rng.Normal()));
    }
    rows.row_begin.push_back(static_cast<int64_t>(rows.column.size()));
  }
  return Raw(std::move(rows), SomeLabels(examples));
}

absl::StatusOr<DataSplit> Split(RawData train, RawData test,
                                const std::string& normalisation,
                                const LabelRule& rule = {}) {
  return MakeSplit(std::move(train), std::move(test), rule,
                   Parse(normalisation));
}

std::vector<float> InputsAsTheyAre(const RawData& data) {
  return RowsOf(*Split(data, data, "none {}")->train).inputs;
}

class EveryKindOfInputs : public testing::TestWithParam<const char*> {
 protected:
  // What the numbers of `parts` equal parts of each input become, in double
  // precision.
  static std::vector<double> Twin(const std::vector<float>& train,
                                  const std::vector<float>& inputs,
                                  int64_t parts) {
    const auto part_of = [parts](size_t i) {
      return static_cast<int64_t>(i) % kFeatures / (kFeatures / parts);
    };
    std::vector<double> result(inputs.begin(), inputs.end());
    for (int64_t part = 0; part < parts; ++part) {
      double sum = 0;
      double count = 0;
      for (size_t i = 0; i < train.size(); ++i) {
        if (part_of(i) != part) continue;
        sum += train[i];
        ++count;
      }
      double squares = 0;
      for (size_t i = 0; i < train.size(); ++i) {
        if (part_of(i) != part) continue;
        squares += std::pow(train[i] - sum / count, 2);
      }
      const double deviation = std::sqrt(squares / count);
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (part_of(i) != part) continue;
        // All the same but for rounding: its deviation counts as 1.
        result[i] =
            deviation < 1e-9 ? 0 : (result[i] - sum / count) / deviation;
      }
    }
    return result;
  }
};

TEST_P(EveryKindOfInputs, IsNormalisedAsTheTrainingInputsSay) {
  const RawData train = RandomData(GetParam(), 50, 1);
  const RawData test = RandomData(GetParam(), 9, 2);
  const std::vector<float> train_inputs = InputsAsTheyAre(train);
  const std::vector<float> test_inputs = InputsAsTheyAre(test);
  for (const auto& [text, parts] :
       {std::pair{"over_all {}", int64_t{1}},
        std::pair{"per_channel {}", kImage.channels},
        std::pair{"per_feature {}", kFeatures}}) {
    SCOPED_TRACE(text);
    const auto split = Split(train, test, text);
    ASSERT_TRUE(split.ok()) << split.status();
    for (const auto& [data, inputs] : {std::pair{split->train, train_inputs},
                                       std::pair{split->test, test_inputs}}) {
      const std::vector<float> got = RowsOf(*data).inputs;
      const std::vector<double> want = Twin(train_inputs, inputs, parts);
      for (size_t i = 0; i < want.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-5) << "number " << i;
    }
  }
}

TEST_P(EveryKindOfInputs, GivenFiguresAreThoseOfEachChannel) {
  const RawData data = RandomData(GetParam(), 5, 1);
  const std::vector<float> inputs = InputsAsTheyAre(data);
  const auto split = Split(
      data, data, "given { mean: [0.1, 0.2, 0.3] deviation: [1, 0.3, 5] }");
  ASSERT_TRUE(split.ok()) << split.status();
  const std::vector<float> got = RowsOf(*split->train).inputs;
  constexpr float kMean[] = {0.1f, 0.2f, 0.3f};
  constexpr float kDeviation[] = {1, 0.3f, 5};
  for (size_t i = 0; i < inputs.size(); ++i) {
    const size_t channel = i % kFeatures / 4;
    EXPECT_EQ(got[i], (inputs[i] - kMean[channel]) / kDeviation[channel]);
  }
  EXPECT_THAT(
      split->description,
      HasSubstr("; inputs normalised: channel 0: (x - 0.1) / 1, channel "
                "1: (x - 0.2) / 0.3, channel 2: (x - 0.3) / 5, as "
                "given"));
}

TEST_P(EveryKindOfInputs, HashIsThatOfWhatTrainingSees) {
  const auto hash = [](const RawData& train, const RawData& test,
                       const std::string& normalisation = "over_all {}",
                       LabelRule rule = {}) {
    const auto split = Split(train, test, normalisation, rule);
    EXPECT_TRUE(split.ok()) << split.status();
    EXPECT_THAT(split->hash, testing::MatchesRegex("[0-9a-f]{16}"));
    return split->hash;
  };
  const RawData train = RandomData(GetParam(), 50, 1);
  const RawData test = RandomData(GetParam(), 9, 2);
  const std::string first = hash(train, test);
  EXPECT_EQ(hash(train, test), first);
  EXPECT_NE(hash(train, train), first);

  RawData other = train;
  std::swap(other.labels[0], other.labels[1]);
  EXPECT_NE(hash(other, test), first) << "another label";
  other = test;
  std::swap(other.labels[0], other.labels[1]);
  EXPECT_NE(hash(train, other), first) << "another test label";
  other = RandomData(GetParam(), 9, 3);
  EXPECT_NE(hash(train, other), first) << "other test inputs";
  other = train;
  other.image = {.channels = 1, .rows = 3, .columns = 4};
  RawData other_test = test;
  other_test.image = other.image;
  EXPECT_NE(hash(other, other_test), first) << "another shape";
  for (const char* const normalisation :
       {"none {}", "per_channel {}", "per_feature {}",
        "given { mean: 0.5 deviation: 0.25 }"}) {
    EXPECT_NE(hash(train, test, normalisation), first) << normalisation;
  }
  EXPECT_NE(hash(train, test, "given { mean: 0.5 deviation: 0.25 }"),
            hash(train, test, "given { mean: 0.5 deviation: 0.5 }"));
  EXPECT_NE(
      hash(train, test, "over_all {}", {.kind = LabelRule::Kind::kRealNumbers}),
      first)
      << "numbers in place of classes";
}

// One number of an input, where only it differs.
TEST_P(EveryKindOfInputs, HashSeesASingleNumber) {
  const RawData data = RandomData(GetParam(), 50, 1);
  RawData other = data;
  std::visit(
      [](auto& rows) {
        if constexpr (requires { rows.codes; }) {
          rows.codes.back() ^= 1;
        } else if constexpr (requires { rows.column; }) {
          rows.value.back() += 1;
        } else {
          rows.values.back() += 1;
        }
      },
      other.inputs);
  EXPECT_NE(Split(other, data, "none {}")->hash,
            Split(data, data, "none {}")->hash);
}

INSTANTIATE_TEST_SUITE_P(Kinds, EveryKindOfInputs,
                         testing::Values("coded", "dense", "sparse"));

TEST(Normalisation, OfInputsThatAreAllTheSameIsTheirMean) {
  const RawData data =
      Raw(DenseRows{.values = std::vector<float>(24, 0.1f)}, {0, 1});
  const auto split = Split(data, data, "over_all {}");
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(RowsOf(*split->train).inputs, testing::Each(0));
  EXPECT_THAT(split->description,
              HasSubstr("inputs normalised: (x - 0.1) / 1, computed"));
}

TEST(Normalisation, OfChannelsNeedsThem) {
  RawData data = RandomData("dense", 5, 1);
  EXPECT_THAT(
      std::string(Split(data, data, "given { mean: [1, 2] deviation: [1, 2] }")
                      .status()
                      .message()),
      AllOf(HasSubstr("data.normalisation.given: there are 2 means, and the "
                      "source has 3 channels")));
  data.image = {};
  for (const char* const text :
       {"per_channel {}", "given { mean: [1, 2] deviation: [1, 2] }"}) {
    const auto split = Split(data, data, text);
    EXPECT_EQ(split.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(split.status().message()),
                HasSubstr("the source holds no images and has no channels"));
  }
}

TEST(LoadData, SameConfigGivesTheSameHash) {
  config::Data data;
  config::TeacherStudentData& teacher = *data.mutable_teacher_student();
  teacher.set_features(20);
  teacher.set_train_examples(100);
  teacher.set_test_examples(100);
  const auto hash = [&] { return LoadData(data, {}, "")->hash; };
  const std::string first = hash();
  EXPECT_EQ(hash(), first);
  data.mutable_normalisation()->mutable_per_feature();
  EXPECT_NE(hash(), first);
  data.mutable_normalisation()->mutable_none();
  EXPECT_EQ(hash(), first);
  teacher.set_seed(2);
  EXPECT_NE(hash(), first);
}

}  // namespace slackline::data_split_test
