// Goal: LIBSVM text is read as written, and every malformed line is refused
// with its number and the reason.
#include "worker/data/libsvm.h"

#include <zlib.h>

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/temp_folder.h"
#include "worker/data/load_data.h"

namespace slackline {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<std::shared_ptr<const Dataset>> Read(const std::string& text,
                                                    int32_t features = 4) {
  const TempFolder folder;
  return ReadLibsvm(folder.Write("data.txt", text), features);
}

std::string ErrorOf(const std::string& text) {
  const auto data = Read(text);
  EXPECT_FALSE(data.ok()) << text;
  return std::string(data.status().message());
}

std::vector<int64_t> LabelsOf(const Dataset& data) {
  std::vector<int64_t> labels;
  for (int64_t i = 0; i < data.examples(); ++i) labels.push_back(data.label(i));
  return labels;
}

TEST(Libsvm, RowsBecomeDenseWithIndicesFromOne) {
  const auto data = Read("1 1:0.5 4:-2e1\n0\n\n1 2:3 \r\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ((*data)->features(), 4);
  EXPECT_EQ((*data)->classes(), 2);
  EXPECT_THAT(LabelsOf(**data), ElementsAre(1, 0, 1));
  std::vector<float> inputs(16, 99);
  std::vector<int64_t> labels(4);
  (*data)->Gather({2, 0, 1, 2}, inputs.data(), labels.data());
  EXPECT_THAT(labels, ElementsAre(1, 1, 0, 1));
  EXPECT_THAT(inputs,
              ElementsAre(0, 3, 0, 0, 0.5f, 0, 0, -20, 0, 0, 0, 0, 0, 3, 0, 0));
}

TEST(Libsvm, SignedLabelsBecomeZeroAndOne) {
  const auto data = Read("+1 1:1\n-1 1:1\n1 1:1");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(LabelsOf(**data), ElementsAre(1, 0, 1));
}

TEST(Libsvm, GzipReadsAsPlain) {
  const TempFolder folder;
  const std::string path = folder.File("data.gz");
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzputs(file, "1 2:7\n"), 6);
  ASSERT_EQ(gzclose(file), Z_OK);
  const auto data = ReadLibsvm(path, 2);
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<float> inputs(2);
  int64_t label = 0;
  (*data)->Gather({0}, inputs.data(), &label);
  EXPECT_THAT(inputs, ElementsAre(0, 7));
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

TEST(Libsvm, OtherLabelsAreRefused) {
  EXPECT_THAT(ErrorOf("2 1:1"), HasSubstr("label '2' is none of"));
  EXPECT_THAT(ErrorOf("yes 1:1"), HasSubstr("label 'yes' is none of"));
  EXPECT_THAT(ErrorOf("1:1"), HasSubstr("label '1:1' is none of"));
  EXPECT_THAT(ErrorOf("0 1:1\n1 1:1\n-1 1:1"),
              HasSubstr("data.txt:3: label 0 and label -1 in one file"));
}

TEST(Libsvm, BinaryRubbishIsShownPrintably) {
  EXPECT_THAT(ErrorOf(std::string("\x01\xff\x00z", 4)),
              HasSubstr("label '???z' is none of"));
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
  auto split = LoadData(data, folder.path());
  EXPECT_EQ(split.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(split.status().message()),
      AllOf(HasSubstr(folder.File("test.txt")), HasSubstr("--data-dir")));
  folder.Write("test.txt", "1 1:1\n");
  split = LoadData(data, folder.path());
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(
      split->description,
      HasSubstr("2 training and 1 test examples, 2 features, 2 classes"));
}

TEST(Libsvm, LoadDataNeedsAFeatureCountAndASource) {
  const TempFolder folder;
  config::Data data;
  EXPECT_THAT(std::string(LoadData(data, folder.path()).status().message()),
              HasSubstr("data: is missing"));
  folder.Write("train.txt", "1 1:1\n");
  data.mutable_libsvm()->set_train("train.txt");
  data.mutable_libsvm()->set_test("train.txt");
  EXPECT_THAT(std::string(LoadData(data, folder.path()).status().message()),
              HasSubstr("data.libsvm.features: is missing"));
}

}  // namespace
}  // namespace slackline
