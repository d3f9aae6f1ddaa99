// Goal: arrays of NumPy are read as numpy.save() writes them, and others are
// refused by name.
#include "worker/data/npy.h"

#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dataset_rows.h"
#include "worker/data/load_data.h"

namespace slackline::npy_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A file of format version `major`.0 with this header.
std::string File(int major, const std::string& header,
                 const std::string& numbers) {
  std::string file = "\x93NUMPY";
  file += static_cast<char>(major);
  file += '\0';
  for (int i = 0; i < (major == 1 ? 2 : 4); ++i)
    file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + numbers;
}

std::string Header(const std::string& type, const std::string& shape) {
  return absl::StrCat("{'descr': '", type,
                      "', 'fortran_order': False, 'shape': ", shape,
                      ", }   \n");
}

template <typename Number>
std::string Bytes(const std::vector<Number>& numbers) {
  std::string bytes(numbers.size() * sizeof(Number), '\0');
  if (!numbers.empty())  // Else data() may be null.
    std::memcpy(bytes.data(), numbers.data(), bytes.size());
  return bytes;
}

template <typename Number>
std::string Array(const std::string& type, const std::string& shape,
                  const std::vector<Number>& numbers) {
  return File(1, Header(type, shape), Bytes(numbers));
}

const std::string kLabels = Array<int64_t>("<i8", "(2,)", {1, 0});

absl::StatusOr<RawData> Read(const std::string& inputs,
                             const std::string& labels = kLabels) {
  const TempFolder folder;
  return ReadNpy({.inputs = folder.Write("x.npy", inputs),
                  .labels = folder.Write("y.npy", labels)});
}

std::string ErrorOf(const std::string& inputs,
                    const std::string& labels = kLabels) {
  const auto data = Read(inputs, labels);
  EXPECT_EQ(data.status().code(), absl::StatusCode::kInvalidArgument)
      << data.status();
  return std::string(data.status().message());
}

// What two examples of two numbers are read as.
template <typename Number>
void ExpectReadAs(const std::string& type, const std::vector<Number>& numbers,
                  const std::vector<float>& want) {
  SCOPED_TRACE(type);
  const auto data = Read(Array(type, "(2, 2)", numbers));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->features, 2);
  EXPECT_FALSE(data->image.is_image());
  EXPECT_EQ(std::get<DenseRows>(data->inputs).values, want);
}

TEST(Npy, EveryTypeIsReadAsNumbers) {
  ExpectReadAs<int8_t>("|i1", {1, -2, 127, -128}, {1, -2, 127, -128});
  ExpectReadAs<int16_t>("<i2", {1, -2, 300, -300}, {1, -2, 300, -300});
  ExpectReadAs<int32_t>("<i4", {1, -2, 70000, 0}, {1, -2, 70000, 0});
  ExpectReadAs<int64_t>("<i8", {1, -2, int64_t{1} << 40, 0},
                        {1, -2, 1099511627776.0f, 0});
  ExpectReadAs<float>("<f4", {1.5f, -2, 1e30f, 0}, {1.5f, -2, 1e30f, 0});
  ExpectReadAs<double>("<f8", {1.5, -2, 0.1, 0}, {1.5f, -2, 0.1f, 0});
}

TEST(Npy, BytesStayBytes) {
  const auto data = Read(Array<uint8_t>("|u1", "(2, 2)", {0, 1, 254, 255}));
  ASSERT_TRUE(data.ok()) << data.status();
  const CodedRows& rows = std::get<CodedRows>(data->inputs);
  EXPECT_THAT(rows.codes, ElementsAre(0, 1, 254, 255));
  EXPECT_EQ(rows.values[0][255], 1);
  EXPECT_THAT(data->labels, ElementsAre(1, 0));
}

TEST(Npy, EveryVersionOfTheFormatIsRead) {
  for (const int major : {1, 2, 3}) {
    const auto data =
        Read(File(major, Header("<f4", "(2, 1)"), Bytes<float>({3, 4})));
    ASSERT_TRUE(data.ok()) << data.status();
    EXPECT_THAT(std::get<DenseRows>(data->inputs).values, ElementsAre(3, 4));
  }
  EXPECT_THAT(ErrorOf(File(4, Header("<f4", "(2, 1)"), "")),
              HasSubstr("x.npy: has format version 4.0, and 1.0 to 3.0"));
}

TEST(Npy, KeysOfTheHeaderMayComeInAnyOrder) {
  const auto data =
      Read(File(1, "{\"shape\":(2,1),'fortran_order':False,'descr':'<f4'}",
                Bytes<float>({3, 4})));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(std::get<DenseRows>(data->inputs).values, ElementsAre(3, 4));
}

TEST(Npy, ImagesHaveTheirChannelsFirstInMemory) {
  const auto grey = Read(Array<uint8_t>("|u1", "(2, 1, 2)", {1, 2, 3, 4}));
  ASSERT_TRUE(grey.ok()) << grey.status();
  EXPECT_EQ(grey->image, (ImageShape{.channels = 1, .rows = 1, .columns = 2}));
  std::vector<uint8_t> bytes;
  for (uint8_t i = 0; i < 2 * 2 * 2 * 3; ++i) bytes.push_back(i);
  const auto colours = Read(Array("|u1", "(2, 2, 2, 3)", bytes));
  ASSERT_TRUE(colours.ok()) << colours.status();
  EXPECT_EQ(colours->image,
            (ImageShape{.channels = 3, .rows = 2, .columns = 2}));
  EXPECT_THAT(std::get<CodedRows>(colours->inputs).codes,
              ElementsAre(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11,  //
                          12, 15, 18, 21, 13, 16, 19, 22, 14, 17, 20, 23));
  const std::vector<float> floats(bytes.begin(), bytes.end());
  const auto dense = Read(Array("<f4", "(2, 2, 2, 3)", floats));
  ASSERT_TRUE(dense.ok()) << dense.status();
  EXPECT_EQ(dense->image, colours->image);
  EXPECT_EQ(std::get<DenseRows>(dense->inputs).values[1], 3);
  EXPECT_THAT(ErrorOf(Array("|u1", "(2, 2, 3, 2)", bytes)),
              HasSubstr("x.npy: its size is 2x2x3x2, and four dimensions"));
}

TEST(Npy, OtherTypesAreRefusedByName) {
  for (const char* const type :
       {">f4", "|b1", "<u2", "<f2", "<c8", "|O", "<U3"}) {
    EXPECT_THAT(ErrorOf(Array<float>(type, "(2, 1)", {1, 2})),
                AllOf(HasSubstr(absl::StrCat("x.npy: has numbers of type '",
                                             type, "'; |u1, |i1,")),
                      HasSubstr("array.astype('<f4')")));
  }
}

TEST(Npy, OtherOrderAndOtherFilesAreRefused) {
  EXPECT_THAT(
      ErrorOf(File(
          1, absl::StrReplaceAll(Header("<f4", "(2, 1)"), {{"False", "True"}}),
          Bytes<float>({1, 2}))),
      HasSubstr("is in Fortran's order; save numpy.ascontiguousarray(array)"));
  EXPECT_THAT(ErrorOf("PK\3\4........."), HasSubstr("is an archive (.npz)"));
  EXPECT_THAT(ErrorOf("a,b\n1,2\n"), HasSubstr("numpy.save"));
  EXPECT_THAT(ErrorOf(""), HasSubstr("ends at offset 0 inside its header"));
}

TEST(Npy, HeaderThatDescribesNoArrayIsRefused) {
  for (const char* const header :
       {"", "{", "{}", "{'descr': '<f4'}", "{'descr': [('a', '<f4')], ",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, -1)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 1)} x",
        "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': ()}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 1)}",
        "{'descr': '<f4', 'fortran_order': False, "
        "'shape': (99999999999999999999,)}"}) {
    EXPECT_THAT(ErrorOf(File(1, header, Bytes<float>({1, 2}))),
                HasSubstr("which does not describe one array of numbers"))
        << header;
  }
  EXPECT_THAT(ErrorOf(File(2, std::string(70000, ' '), "")),
              HasSubstr("has a header of 70000 bytes, at most 65536"));
}

TEST(Npy, OtherSizesAreRefused) {
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(2,)", {1, 2})),
              HasSubstr("has 1 dimension; inputs are [examples, numbers]"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(1, 1, 1, 1, 1)", {1})),
              HasSubstr("has 5 dimensions"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(0, 3)", {})),
              HasSubstr("holds 0 examples"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "()", {1})),
              HasSubstr("holds 0 examples"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(2, 0)", {})),
              HasSubstr("has 0 numbers per example"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(2, 1)", {1, 2}),
                      Array<float>("<f4", "(2, 1)", {1, 2})),
              HasSubstr("y.npy: has the size 2x1; labels have one dimension"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(3, 1)", {1, 2, 3})),
              AllOf(HasSubstr("x.npy holds 3 examples, but"),
                    HasSubstr("y.npy 2 labels")));
}

TEST(Npy, FileOfAnotherLengthIsRefused) {
  const std::string whole =
      Array<float>("<f4", "(2, 30)", std::vector<float>(60));
  EXPECT_THAT(ErrorOf(whole.substr(0, whole.size() - 1)),
              HasSubstr("promises an array of 2x30, 240 bytes, but only 239"));
  EXPECT_THAT(ErrorOf(whole + "x"), HasSubstr("but more follow"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(4294967296, 67108864)", {1})),
              HasSubstr("more than a file of this size can hold"));
}

TEST(Npy, NumbersThatAreNotFiniteAreRefused) {
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(2, 2)", {1, 2, 3, NAN})),
              HasSubstr("x.npy: example 1 has a number that is not finite"));
  EXPECT_THAT(ErrorOf(Array<double>("<f8", "(2, 1)", {1e300, 1})),
              HasSubstr("example 0 has a number that is not finite, inf"));
  EXPECT_THAT(ErrorOf(Array<float>("<f4", "(2, 1)", {1, 2}),
                      Array<double>("<f8", "(2,)", {1, INFINITY})),
              HasSubstr("y.npy: example 1"));
}

class NpyFilesTest : public testing::Test {
 protected:
  absl::StatusOr<DataSplit> Load() {
    config::NpyData& npy = *data_.mutable_npy();
    npy.set_train_inputs("x_train.npy");
    npy.set_train_labels("y_train.npy");
    npy.set_test_inputs("x_test.npy");
    npy.set_test_labels("y_test.npy");
    return LoadData(data_, model_, folder_.path());
  }
  TempFolder folder_;
  config::Data data_;
  config::Model model_;
};

TEST_F(NpyFilesTest, BytesAreNormalisedUnlessTheConfigSaysOtherwise) {
  folder_.Write("x_train.npy",
                Array<uint8_t>("|u1", "(2, 2)", {0, 0, 255, 255}));
  folder_.Write("y_train.npy", kLabels);
  folder_.Write("x_test.npy", Array<uint8_t>("|u1", "(1, 2)", {0, 255}));
  folder_.Write("y_test.npy", Array<uint8_t>("|u1", "(1,)", {1}));
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(RowsOf(*data->train).inputs, ElementsAre(-1, -1, 1, 1));
  EXPECT_THAT(RowsOf(*data->test).inputs, ElementsAre(-1, 1));
  EXPECT_THAT(RowsOf(*data->train).labels, ElementsAre(1, 0));
  data_.mutable_normalisation()->mutable_none();
  EXPECT_THAT(RowsOf(*Load()->test).inputs, ElementsAre(0, 1));
}

TEST_F(NpyFilesTest, FloatsStayAsTheyAre) {
  folder_.Write("x_train.npy", Array<float>("<f4", "(2, 1)", {3, 5}));
  folder_.Write("y_train.npy", Array<double>("<f8", "(2,)", {0.5, -1}));
  folder_.Write("x_test.npy", Array<float>("<f4", "(1, 1)", {7}));
  folder_.Write("y_test.npy", Array<double>("<f8", "(1,)", {2.5}));
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("y_train.npy[0]: label 0.5 is no integer"));
  model_.mutable_linear();
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(RowsOf(*data->train).inputs, ElementsAre(3, 5));
  EXPECT_THAT(RowsOf(*data->test).numbers, ElementsAre(2.5f));
  folder_.Write("x_test.npy", Array<uint8_t>("|u1", "(1, 1)", {7}));
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("must be of one kind"));
}

TEST_F(NpyFilesTest, MissingFileIsNamed) {
  const auto data = Load();
  EXPECT_EQ(data.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(data.status().message()),
              HasSubstr("data.npy.train_inputs: "));
}

}  // namespace slackline::npy_test
