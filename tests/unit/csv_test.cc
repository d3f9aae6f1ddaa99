// Goal: CSV is read as written, and every wrong cell is refused with its line,
// its column and what stands there.
#include "worker/data/csv.h"

#include <zlib.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dataset_rows.h"
#include "worker/data/load_data.h"

namespace slackline::csv_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

absl::StatusOr<CsvTable> Read(const std::string& text,
                              const std::string& label = "") {
  const TempFolder folder;
  return ReadCsv(folder.Write("data.csv", text), label);
}

std::string ErrorOf(const std::string& text, const std::string& label = "") {
  const auto table = Read(text, label);
  EXPECT_EQ(table.status().code(), absl::StatusCode::kInvalidArgument) << text;
  return std::string(table.status().message());
}

std::vector<float> InputsOf(const CsvTable& table) {
  return std::get<DenseRows>(table.data.inputs).values;
}

TEST(Csv, LastColumnIsTheLabelUnlessNamed) {
  const std::string text = "a,b,c\n1,2,3\n4,5,6\n";
  const auto last = Read(text);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->data.features, 2);
  EXPECT_THAT(InputsOf(*last), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(last->data.labels, ElementsAre(3, 6));
  const auto named = Read(text, "b");
  ASSERT_TRUE(named.ok()) << named.status();
  EXPECT_THAT(InputsOf(*named), ElementsAre(1, 3, 4, 6));
  EXPECT_THAT(named->data.labels, ElementsAre(2, 5));
}

TEST(Csv, QuotesBlanksAndEndsOfLinesPlayNoPart) {
  const auto table = Read(
      "\xef\xbb\xbf\"width, cm\" , \"the \"\"real\"\" one\",label\r\n"
      " 1.5 ,-2e1,\"0\"\r\n"
      "\r\n"
      "\"3\",4,1");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(table->columns,
              ElementsAre("width, cm", "the \"real\" one", "label"));
  EXPECT_THAT(InputsOf(*table), ElementsAre(1.5f, -20, 3, 4));
  EXPECT_THAT(table->data.labels, ElementsAre(0, 1));
  EXPECT_THAT(table->data.label_place(1), testing::EndsWith("data.csv:4"));
}

TEST(Csv, GzipReadsAsPlain) {
  const TempFolder folder;
  const std::string path = folder.File("data.csv.gz");
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzputs(file, "a,b\n7,1\n"), 8);
  ASSERT_EQ(gzclose(file), Z_OK);
  const auto table = ReadCsv(path, "");
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_THAT(InputsOf(*table), ElementsAre(7));
}

TEST(Csv, CellThatIsNoNumberNamesLineColumnAndWhatStandsThere) {
  for (const char* const cell : {"red", "1 2", "nan", "-inf", "1e999", "0x"}) {
    EXPECT_THAT(ErrorOf(std::string("width,\"my label\"\n1,2\n") + cell + ",3"),
                HasSubstr(std::string("data.csv:3: column 'width': '") + cell +
                          "' is no finite number"));
  }
  EXPECT_THAT(ErrorOf("width,my label\n1,?\n"),
              HasSubstr("data.csv:2: column 'my label': '?' is no finite"));
  EXPECT_THAT(ErrorOf("a,b\n1,2\n,3\n"),
              HasSubstr("data.csv:3: column 'a': is empty; every cell has to "
                        "be a number"));
}

TEST(Csv, LineWithAnotherNumberOfCellsIsRefused) {
  EXPECT_THAT(ErrorOf("a,b,c\n1,2\n"),
              HasSubstr("data.csv:2: there are 2 cells, and the header names 3 "
                        "columns"));
  EXPECT_THAT(ErrorOf("a,b\n1,2\n1,2,3,4\n"),
              HasSubstr("data.csv:3: there are 4 cells"));
}

TEST(Csv, QuotesThatDoNotEndAreRefused) {
  EXPECT_THAT(ErrorOf("a,\"b\n1,2\n"),
              HasSubstr("data.csv:1: the quotes of '\"b' do not end in this"));
  EXPECT_THAT(ErrorOf("a,\"b\"c\n1,2\n"),
              HasSubstr("behind quotes stands 'c', a comma is required"));
}

TEST(Csv, HeaderThatNamesNoColumnsIsRefused) {
  EXPECT_THAT(ErrorOf("1,2\n3,4\n"),
              HasSubstr("data.csv:1: starts with '1,2'; the first line has to "
                        "name the columns"));
  EXPECT_THAT(ErrorOf("a\n1\n"),
              HasSubstr("there is one column, 'a', at least 2"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("holds no examples below a header"));
  EXPECT_THAT(ErrorOf("a,b\n\n"), HasSubstr("holds no examples"));
}

TEST(Csv, LabelThatNoColumnOrTwoHaveIsRefused) {
  EXPECT_THAT(
      ErrorOf("a,b\n1,2\n", "c"),
      HasSubstr("data.csv.label: there is no column 'c' among 'a', 'b'"));
  EXPECT_THAT(ErrorOf("a,b,a\n1,2,3\n", "a"),
              HasSubstr("two columns are named 'a'"));
}

TEST(Csv, BinaryRubbishIsShownPrintably) {
  EXPECT_THAT(ErrorOf(std::string("a,b\n\x01\xff\0,1", 9)),
              HasSubstr("column 'a': '?\?\?' is no finite number"));
}

TEST(Csv, HeadersOfBothFilesHaveToBeTheSame) {
  const std::string same(50, 'x');
  const auto train = Read("a,b," + same + "1\n1,2,3\n");
  ASSERT_TRUE(CheckSameColumns(*train, *train).ok());
  const auto check = [&](const std::string& text) {
    const auto test = Read(text);
    EXPECT_TRUE(test.ok()) << test.status();
    return std::string(CheckSameColumns(*train, *test).message());
  };
  EXPECT_THAT(check("a,c," + same + "1\n1,2,3\n"),
              HasSubstr("data.csv: column 2 is 'b' in "));
  EXPECT_THAT(check("a,b\n1,2\n"), HasSubstr("and missing in "));
  EXPECT_THAT(check("a,b," + same + "2\n1,2,3\n"), HasSubstr("column 3 is "));
}

class CsvFiles : public testing::Test {
 protected:
  absl::StatusOr<DataSplit> Load(const std::string& train,
                                 const std::string& test) {
    folder_.Write("train.csv", train);
    folder_.Write("test.csv", test);
    data_.mutable_csv()->set_train("train.csv");
    data_.mutable_csv()->set_test("test.csv");
    return LoadData(data_, model_, folder_.path());
  }
  TempFolder folder_;
  config::Data data_;
  config::Model model_;
};

TEST_F(CsvFiles, LabelsAreClassesInTheirOrder) {
  data_.mutable_csv()->set_label("quality");
  const auto data =
      Load("quality,acid\n5,1\n3,2\n8,3\n", "quality,acid\n3,4\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->classes(), 3);
  EXPECT_THAT(RowsOf(*data->train).labels, ElementsAre(1, 0, 2));
  EXPECT_THAT(RowsOf(*data->test).labels, ElementsAre(0));
  EXPECT_THAT(RowsOf(*data->test).inputs, ElementsAre(4));
  EXPECT_THAT(data->description,
              HasSubstr("CSV data from train.csv and test.csv: 3 training and "
                        "1 test examples, 1 feature, 3 classes; inputs as "
                        "they are"));
}

TEST_F(CsvFiles, LinearRegressionPredictsTheColumn) {
  model_.mutable_linear();
  const auto data = Load("x,y\n1,0.5\n2,7\n", "x,y\n3,-1.25\n");
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->classes(), 0);
  EXPECT_THAT(RowsOf(*data->train).numbers, ElementsAre(0.5f, 7));
  EXPECT_THAT(RowsOf(*data->test).numbers, ElementsAre(-1.25f));
}

TEST_F(CsvFiles, OtherHeaderOrMissingFileIsRefused) {
  EXPECT_THAT(
      std::string(Load("a,b\n1,2\n2,3\n", "b,a\n1,2\n").status().message()),
      AllOf(HasSubstr("column 1 is 'a' in "), HasSubstr("test.csv")));
  data_.mutable_csv()->set_test("nowhere.csv");
  const auto missing = LoadData(data_, model_, folder_.path());
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()),
              AllOf(HasSubstr("data.csv.test: " + folder_.File("nowhere.csv")),
                    HasSubstr("--data-dir")));
}

}  // namespace slackline::csv_test
