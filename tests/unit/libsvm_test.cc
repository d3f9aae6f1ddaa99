// Goal: LIBSVM text is read as written, and every malformed line is refused
// with its number and the reason.
#include "worker/data/libsvm.h"

#include <zlib.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dataset_rows.h"
#include "worker/data/load_data.h"

namespace slackline::libsvm_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<RawData> Read(const std::string& text, int32_t features = 4) {
  const TempFolder folder;
  return ReadLibsvm(folder.Write("data.txt", text), features);
}

std::string ErrorOf(const std::string& text) {
  const auto data = Read(text);
  EXPECT_FALSE(data.ok()) << text;
  return std::string(data.status().message());
}

// Both files, for that model.
absl::StatusOr<DataSplit> Load(const std::string& train,
                               const std::string& test,
                               const config::Model& model = {}) {
  const TempFolder folder;
  folder.Write("train.txt", train);
  folder.Write("test.txt", test);
  config::Data data;
  data.mutable_libsvm()->set_train("train.txt");
  data.mutable_libsvm()->set_test("test.txt");
  data.mutable_libsvm()->set_features(4);
  return LoadData(data, model, folder.path());
}

std::string LoadErrorOf(const std::string& train, const std::string& test) {
  return std::string(Load(train, test).status().message());
}

TEST(Libsvm, RowsBecomeDenseWithIndicesFromOne) {
  const std::string text = "1 1:0.5 4:-2e1\n0\n\n1 2:3 \r\n";
  const auto data = Load(text, text);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->features(), 4);
  EXPECT_EQ(data->train->classes(), 2);
  std::vector<float> inputs(16, 99);
  std::vector<int64_t> labels(4);
  data->train->Gather({2, 0, 1, 2}, inputs.data(), labels.data());
  EXPECT_THAT(labels, ElementsAre(1, 1, 0, 1));
  EXPECT_THAT(inputs,
              ElementsAre(0, 3, 0, 0, 0.5f, 0, 0, -20, 0, 0, 0, 0, 0, 3, 0, 0));
}

TEST(Libsvm, SignedLabelsBecomeZeroAndOne) {
  const auto data = Load("+1 1:1\n-1 1:1\n1 1:1", "-1 1:1");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(RowsOf(*data->train).labels, ElementsAre(1, 0, 1));
  EXPECT_THAT(RowsOf(*data->test).labels, ElementsAre(0));
}

TEST(Libsvm, DistinctLabelsOfTheTrainingDataAreTheClassesInTheirOrder) {
  const auto data = Load("7 1:1\n-3 1:1\n20 1:1\n7.0 1:2", "20\n-3\n7e0\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->classes(), 3);
  EXPECT_THAT(RowsOf(*data->train).labels, ElementsAre(1, 0, 2, 1));
  EXPECT_THAT(RowsOf(*data->test).labels, ElementsAre(2, 0, 1));
}

TEST(Libsvm, TestLabelThatTrainingLacksNamesItsLine) {
  EXPECT_THAT(LoadErrorOf("1\n2\n5\n", "2\n\n3 1:1\n"),
              HasSubstr("test.txt:3: label 3 is none of the 3 labels of the "
                        "training data, 1 to 5"));
  EXPECT_THAT(LoadErrorOf("-1\n1\n", "0\n"),
              HasSubstr("test.txt:1: label 0 is none of the 2 labels"));
}

TEST(Libsvm, LabelsOfOneClassOrNoneAreRefused) {
  EXPECT_THAT(LoadErrorOf("1 1:1\n1 2:1\n", "1\n"),
              HasSubstr("all have the label 1; at least two classes"));
  EXPECT_THAT(LoadErrorOf("1\n2.5 1:1\n", "1\n"),
              AllOf(HasSubstr("train.txt:2: label 2.5 is no integer"),
                    HasSubstr("model { linear {} }")));
}

TEST(Libsvm, LinearRegressionHasRealNumbersAsLabels) {
  config::Model model;
  model.mutable_linear();
  const auto data = Load("1.5 1:1\n-2e3 1:1\n", "0.25\n", model);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->classes(), 0);
  EXPECT_THAT(RowsOf(*data->train).numbers, ElementsAre(1.5f, -2000));
  EXPECT_THAT(RowsOf(*data->test).numbers, ElementsAre(0.25f));
  EXPECT_THAT(data->description, HasSubstr("real numbers as labels"));
  const auto too_large = Load("1.5 1:1\n1e300 1:1\n", "0.25\n", model);
  EXPECT_THAT(std::string(too_large.status().message()),
              HasSubstr("train.txt:2: label 1e+300 is too large for a float"));
}

TEST(Libsvm, GzipReadsAsPlain) {
  const TempFolder folder;
  const std::string path = folder.File("data.gz");
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzputs(file, "1 2:7\n"), 6);
  ASSERT_EQ(gzclose(file), Z_OK);
  const auto data = ReadLibsvm(path, 2);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(std::get<SparseRows>(data->inputs).column, ElementsAre(1));
  EXPECT_THAT(std::get<SparseRows>(data->inputs).value, ElementsAre(7));
}

TEST(Libsvm, IndexOutOfRangeNamesTheLineAndTheBound) {
  EXPECT_THAT(ErrorOf("1 1:1\n0 5:1\n"),
              AllOf(HasSubstr("data.txt:2: "),
                    HasSubstr("feature index 5 is outside [1, 4]")));
  EXPECT_THAT(ErrorOf("1 0:1\n"),
              HasSubstr("feature index 0 is outside [1, 4]"));
}

TEST(Libsvm, UnsortedOrRepeatedIndexIsRefused) {
  EXPECT_THAT(ErrorOf("1 3:1 2:1\n"),
              HasSubstr("data.txt:1: feature index 2 comes after 3"));
  EXPECT_THAT(ErrorOf("1 3:1 3:1\n"),
              HasSubstr("feature index 3 comes after 3"));
}

TEST(Libsvm, EntryThatIsNotTwoNumbersIsRefused) {
  for (const char* const entry : {"2", "2:", ":2", "a:1", "2:b", "2:nan",
                                  "2:inf", "1.5:1", "2:1:1", "99999999999:1"}) {
    EXPECT_THAT(ErrorOf(std::string("1 ") + entry),
                HasSubstr(std::string("data.txt:1: '") + entry +
                          "' is not index:value"));
  }
}

TEST(Libsvm, LabelsThatAreNoNumbersAreRefused) {
  for (const char* const label : {"yes", "1:1", "nan", "inf", "1e999"}) {
    EXPECT_THAT(ErrorOf(std::string("1 1:1\n") + label + " 1:1"),
                HasSubstr(std::string("data.txt:2: label '") + label +
                          "' is no finite number"));
  }
}

TEST(Libsvm, BinaryRubbishIsShownPrintably) {
  EXPECT_THAT(ErrorOf(std::string("\x01\xff\x00z", 4)),
              HasSubstr("label '???z' is no finite number"));
}

TEST(Libsvm, EmptyFileIsRefused) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("holds no examples"));
  EXPECT_THAT(ErrorOf("\n \n"), HasSubstr("holds no examples"));
}

TEST(Libsvm, LoadDataNamesTheMissingFile) {
  const TempFolder folder;
  config::Data data;
  data.mutable_libsvm()->set_train("train.txt");
  data.mutable_libsvm()->set_test("test.txt");
  data.mutable_libsvm()->set_features(2);
  folder.Write("train.txt", "1 1:1\n0 2:1\n");
  auto split = LoadData(data, {}, folder.path());
  EXPECT_EQ(split.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(split.status().message()),
      AllOf(HasSubstr(folder.File("test.txt")), HasSubstr("--data-dir")));
  folder.Write("test.txt", "1 1:1\n");
  split = LoadData(data, {}, folder.path());
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(
      split->description,
      HasSubstr("2 training and 1 test examples, 2 features, 2 classes"));
}

TEST(Libsvm, LoadDataNeedsAFeatureCountAndASource) {
  const TempFolder folder;
  config::Data data;
  EXPECT_THAT(std::string(LoadData(data, {}, folder.path()).status().message()),
              HasSubstr("data: is missing"));
  folder.Write("train.txt", "1 1:1\n");
  data.mutable_libsvm()->set_train("train.txt");
  data.mutable_libsvm()->set_test("train.txt");
  EXPECT_THAT(std::string(LoadData(data, {}, folder.path()).status().message()),
              HasSubstr("data.libsvm.features: is missing"));
}

}  // namespace slackline::libsvm_test
