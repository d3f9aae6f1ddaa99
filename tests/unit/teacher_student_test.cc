// Goal: the generated set depends on its config only, has the inputs it
// promises, and its labels can be learned from the inputs.
#include "worker/data/teacher_student.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/dataset_rows.h"
#include "worker/data/load_data.h"

namespace slackline::teacher_student_test {

using testing::HasSubstr;

config::TeacherStudentData Small(int64_t seed) {
  config::TeacherStudentData config;
  config.set_features(20);
  config.set_classes(5);
  config.set_train_examples(2000);
  config.set_test_examples(1000);
  config.set_seed(seed);
  return config;
}

absl::StatusOr<DataSplit> Generated(const config::TeacherStudentData& config) {
  config::Data data;
  *data.mutable_teacher_student() = config;
  return LoadData(data, {}, "");
}

TEST(TeacherStudent, SameSeedGivesSameDataAndAnotherSeedOther) {
  const auto first = Generated(Small(1));
  const auto again = Generated(Small(1));
  const auto other = Generated(Small(2));
  ASSERT_TRUE(first.ok() && again.ok() && other.ok());
  EXPECT_EQ(RowsOf(*first->train).inputs, RowsOf(*again->train).inputs);
  EXPECT_EQ(RowsOf(*first->train).labels, RowsOf(*again->train).labels);
  EXPECT_NE(RowsOf(*first->train).inputs, RowsOf(*other->train).inputs);
}

TEST(TeacherStudent, TestSetIsNotAPartOfTheTrainingSet) {
  const auto split = Generated(Small(1));
  ASSERT_TRUE(split.ok()) << split.status();
  std::vector<float> train = RowsOf(*split->train).inputs;
  const std::vector<float> test = RowsOf(*split->test).inputs;
  EXPECT_EQ(
      std::search(train.begin(), train.end(), test.begin(), test.begin() + 20),
      train.end());
}

// 40,000 inputs: the mean has deviation 0.005, the variance 0.007.
TEST(TeacherStudent, InputsAreStandardNormal) {
  const auto split = Generated(Small(1));
  ASSERT_TRUE(split.ok()) << split.status();
  const std::vector<float> inputs = RowsOf(*split->train).inputs;
  double sum = 0;
  double squares = 0;
  int beyond_two = 0;
  for (const float x : inputs) {
    sum += x;
    squares += static_cast<double>(x) * x;
    beyond_two += std::abs(x) > 2;
  }
  const auto count = static_cast<double>(inputs.size());
  EXPECT_NEAR(sum / count, 0, 0.025);
  EXPECT_NEAR(squares / count, 1, 0.04);
  EXPECT_NEAR(beyond_two / count, 0.0455, 0.01);
}

TEST(TeacherStudent, NoClassIsRareOrDominates) {
  for (int64_t seed = 1; seed <= 5; ++seed) {
    const auto split = Generated(Small(seed));
    ASSERT_TRUE(split.ok()) << split.status();
    std::vector<int> count(5);
    for (const int64_t label : RowsOf(*split->train).labels) ++count.at(label);
    EXPECT_GT(*std::min_element(count.begin(), count.end()), 100)
        << "seed " << seed;  // Of 2000.
    EXPECT_LT(*std::max_element(count.begin(), count.end()), 900)
        << "seed " << seed;
  }
}

// The direction of each class's mean input, from the training set, predicts the
// test labels far better than chance (0.2): inputs and labels belong together.
TEST(TeacherStudent, LabelsCanBeLearnedFromInputs) {
  const auto split = Generated(Small(1));
  ASSERT_TRUE(split.ok()) << split.status();
  const DatasetRows train = RowsOf(*split->train);
  std::vector<std::vector<double>> mean(5, std::vector<double>(20));
  std::vector<int> count(5);
  for (size_t row = 0; row < train.labels.size(); ++row) {
    ++count[train.labels[row]];
    for (int i = 0; i < 20; ++i)
      mean[train.labels[row]][i] += train.inputs[row * 20 + i];
  }
  const DatasetRows test = RowsOf(*split->test);
  int correct = 0;
  for (size_t row = 0; row < test.labels.size(); ++row) {
    std::vector<double> score(5);
    for (int c = 0; c < 5; ++c) {
      for (int i = 0; i < 20; ++i)
        score[c] += mean[c][i] / count[c] * test.inputs[row * 20 + i];
    }
    correct += std::max_element(score.begin(), score.end()) - score.begin() ==
               test.labels[row];
  }
  EXPECT_GT(correct, 500) << "of 1000";
}

TEST(TeacherStudent, ImpossibleSizesAreRefused) {
  config::TeacherStudentData config = Small(1);
  config.set_classes(1);
  EXPECT_THAT(std::string(GenerateTeacherStudent(config).status().message()),
              HasSubstr("data.teacher_student.classes: value is 1; 2 to"));
  config = Small(1);
  config.set_train_examples(0);
  EXPECT_THAT(std::string(GenerateTeacherStudent(config).status().message()),
              HasSubstr("train_examples: value is 0"));
  config = Small(1);
  config.set_features(1 << 20);
  config.set_train_examples(5000);
  EXPECT_THAT(std::string(GenerateTeacherStudent(config).status().message()),
              HasSubstr("above the bound"));
}

TEST(TeacherStudent, LoadDataNeedsNoFolder) {
  const auto split = Generated(Small(7));
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_EQ(split->train->classes(), 5);
  EXPECT_THAT(split->description, HasSubstr("generated from seed 7"));
}

}  // namespace slackline::teacher_student_test
