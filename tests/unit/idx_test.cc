// Goal: IDX files are read as they were written, damaged ones are refused with
// the reason, and generated stand-ins are never taken for the real data.
#include "worker/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"
#include "tests/unit/dataset_rows.h"
#include "worker/data/load_data.h"
#include "worker/data/stand_in.h"

namespace slackline::idx_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16 & 0xff),
          static_cast<char>(value >> 8 & 0xff),
          static_cast<char>(value & 0xff)};
}

// Magic number, dimensions, numbers.
std::string Idx(uint32_t magic, const std::vector<uint32_t>& dimensions,
                const std::string& numbers) {
  std::string file = BigEndian(magic);
  for (const uint32_t size : dimensions) file += BigEndian(size);
  return file + numbers;
}

std::string Images(uint32_t count, uint32_t rows, uint32_t columns,
                   const std::string& pixels) {
  return Idx(0x803, {count, rows, columns}, pixels);
}

std::string Labels(uint32_t count, const std::string& labels) {
  return Idx(0x801, {count}, labels);
}

// Three pictures of 1x2 pixels.
const std::string kImages = Images(3, 1, 2, std::string("\0\1\2\3\4\377", 6));
const std::string kLabels = Labels(3, std::string("\7\0\11", 3));

void WriteGzip(const std::string& path, const std::string& content) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr);
  ASSERT_EQ(
      gzwrite(file, content.data(), static_cast<unsigned>(content.size())),
      static_cast<int>(content.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

// As pictures are before they are normalised.
float Level(int pixel) { return static_cast<float>(pixel) / 255.0f; }

absl::StatusOr<RawData> Read(const std::string& images,
                             const std::string& labels) {
  const TempFolder folder;
  return ReadIdx({.images = folder.Write("images", images),
                  .labels = folder.Write("labels", labels)});
}

void ExpectThreePictures(const RawData& data) {
  EXPECT_EQ(data.features, 2);
  EXPECT_EQ(data.image, (ImageShape{.channels = 1, .rows = 1, .columns = 2}));
  EXPECT_THAT(data.labels, ElementsAre(7, 0, 9));
  const CodedRows& rows = std::get<CodedRows>(data.inputs);
  EXPECT_THAT(rows.codes, ElementsAre(0, 1, 2, 3, 4, 255));
  ASSERT_EQ(rows.values.size(), 1);
  for (int pixel = 0; pixel < 256; ++pixel)
    EXPECT_EQ(rows.values[0][pixel], Level(pixel));
}

// Message of the error that reading these two files gives.
std::string ErrorOf(const std::string& images, const std::string& labels) {
  const auto data = Read(images, labels);
  EXPECT_EQ(data.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(data.status().message());
}

TEST(Idx, BytesAreReadAsTheyStand) {
  const auto data = Read(kImages, kLabels);
  ASSERT_TRUE(data.ok()) << data.status();
  ExpectThreePictures(*data);
}

// Two pictures of 2x1 pixels in three colours, in both orders of dimensions.
TEST(Idx, ChannelsComeFirstInMemoryWhereverTheyAre) {
  const std::string labels = Labels(2, std::string("\0\1", 2));
  const auto first = Read(Idx(0x804, {2, 3, 2, 1}, "rrggbbRRGGBB"), labels);
  const auto last = Read(Idx(0x804, {2, 2, 5, 3},
                             "rgbrgbrgbrgbrgb"
                             "rgbrgbrgbrgbrgb"
                             "RGBRGBRGBRGBRGB"
                             "RGBRGBRGBRGBRGB"),
                         labels);
  EXPECT_EQ(first.status().code(), absl::StatusCode::kInvalidArgument)
      << "1 and 3 could both be channels";
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(last->image, (ImageShape{.channels = 3, .rows = 2, .columns = 5}));
  const auto text = [](const RawData& data) {
    const std::vector<uint8_t>& codes = std::get<CodedRows>(data.inputs).codes;
    return std::string(codes.begin(), codes.end());
  };
  EXPECT_EQ(text(*last),
            "rrrrrrrrrrggggggggggbbbbbbbbbbRRRRRRRRRRGGGGGGGGGGBBBBBBBBBB");
  const auto again = Read(Idx(0x804, {2, 3, 2, 5}, text(*last)), labels);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->image, last->image);
  EXPECT_EQ(text(*again), text(*last));
}

TEST(Idx, PictureWithOneChannelMayHaveFourDimensions) {
  const auto data =
      Read(Idx(0x804, {1, 2, 2, 1}, "abcd"), Labels(1, std::string(1, '\0')));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->image, (ImageShape{.channels = 1, .rows = 2, .columns = 2}));
}

TEST(Idx, ChannelsThatCannotBeToldAreRefusedWithTheWayOut) {
  EXPECT_THAT(ErrorOf(Idx(0x804, {1, 3, 2, 4}, std::string(24, 'x')), kLabels),
              AllOf(HasSubstr("images: its size is 1x3x2x4"),
                    HasSubstr("both 3 and 4 could be the channels"),
                    HasSubstr("store one channel as [count, rows, columns]")));
  EXPECT_THAT(ErrorOf(Idx(0x804, {1, 2, 5, 6}, std::string(60, 'x')), kLabels),
              AllOf(HasSubstr("its size is 1x2x5x6"),
                    HasSubstr("with 1, 3 or 4 channels")));
}

TEST(Idx, LabelsMayBeIntegersOf32Bits) {
  const auto data = Read(
      kImages,
      Idx(0xc01, {3}, BigEndian(7) + BigEndian(70000) + BigEndian(0xffffffff)));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(data->labels, ElementsAre(7, 70000, -1));
  EXPECT_THAT(data->label_place(1), testing::EndsWith("labels, offset 12"));
}

TEST(Idx, OtherTypesAreRefusedByName) {
  EXPECT_THAT(ErrorOf(Idx(0xd03, {1, 1, 1}, "abcd"), kLabels),
              AllOf(HasSubstr("images: starts with magic number 0x00000d03"),
                    HasSubstr("floats in 3 dimensions"),
                    HasSubstr("images are unsigned bytes in 3 dimensions "
                              "(0x00000803) or 4")));
  EXPECT_THAT(
      ErrorOf(kImages, Idx(0xb01, {1}, "ab")),
      AllOf(HasSubstr("labels: "), HasSubstr("16-bit integers in 1 dimension"),
            HasSubstr("unsigned bytes (0x00000801) or 32-bit integers "
                      "(0x00000c01)")));
  EXPECT_THAT(ErrorOf(Idx(0x805, {1, 1, 1, 1, 1}, "a"), kLabels),
              HasSubstr("unsigned bytes in 5 dimensions"));
  EXPECT_THAT(ErrorOf("PK\3\4", kLabels),
              HasSubstr("is this another kind of file?"));
}

TEST(Idx, GzipReadsAsPlain) {
  const TempFolder folder;
  WriteGzip(folder.File("images.gz"), kImages);
  WriteGzip(folder.File("labels.gz"), kLabels);
  const auto data = ReadIdx(
      {.images = folder.File("images.gz"), .labels = folder.File("labels.gz")});
  ASSERT_TRUE(data.ok()) << data.status();
  ExpectThreePictures(*data);
}

TEST(Idx, WrongMagicNumberIsRefused) {
  EXPECT_THAT(ErrorOf(kLabels, kImages),
              AllOf(HasSubstr("images: "), HasSubstr("0x00000801"),
                    HasSubstr("0x00000803")));
}

TEST(Idx, FileThatEndsEarlyIsRefused) {
  EXPECT_THAT(ErrorOf("", kLabels),
              HasSubstr("ends at offset 0 inside the magic number"));
  EXPECT_THAT(ErrorOf(kImages.substr(0, 14), kLabels),
              HasSubstr("ends at offset 14 inside dimension 3 of its header"));
  EXPECT_THAT(
      ErrorOf(kImages.substr(0, kImages.size() - 1), kLabels),
      HasSubstr("promises 3 images of 1x2, 6 bytes, but only 5 follow"));
}

TEST(Idx, BytesAfterTheEndAreRefused) {
  EXPECT_THAT(ErrorOf(kImages, kLabels + "x"),
              HasSubstr("promises 3 labels, 3 bytes, but more follow"));
}

TEST(Idx, GzipThatIsCutOffIsRefused) {
  const TempFolder folder;
  WriteGzip(folder.File("images.gz"), kImages);
  const std::string whole = ReadWholeFile(folder.File("images.gz"));
  folder.Write("images.gz", whole.substr(0, whole.size() - 9));
  const auto data = ReadIdx({.images = folder.File("images.gz"),
                             .labels = folder.Write("labels", kLabels)});
  EXPECT_EQ(data.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(data.status().message()),
              AllOf(HasSubstr("images.gz"), HasSubstr("cut off"),
                    HasSubstr("unexpected end of file")));
}

TEST(Idx, GzipWithDamagedBytesIsRefused) {
  const TempFolder folder;
  WriteGzip(folder.File("images.gz"), kImages);
  std::string damaged = ReadWholeFile(folder.File("images.gz"));
  damaged[damaged.size() - 8] ^= 1;  // In the checksum.
  folder.Write("images.gz", damaged);
  const auto data = ReadIdx({.images = folder.File("images.gz"),
                             .labels = folder.Write("labels", kLabels)});
  EXPECT_EQ(data.status().code(), absl::StatusCode::kDataLoss) << data.status();
}

TEST(Idx, DifferentNumbersOfImagesAndLabelsAreRefused) {
  EXPECT_THAT(ErrorOf(kImages, Labels(2, "\1\2")),
              AllOf(HasSubstr("3 images"), HasSubstr("2 labels")));
}

TEST(Idx, NoImagesAreRefused) {
  EXPECT_THAT(ErrorOf(Images(0, 28, 28, ""), Labels(0, "")),
              HasSubstr("holds no images"));
}

TEST(Idx, HeaderThatPromisesTooMuchIsRefusedBeforeAnythingIsAllocated) {
  EXPECT_THAT(ErrorOf(Images(0xffffffff, 4096, 4096, "x"), kLabels),
              HasSubstr("more than a file of this size can hold"));
  EXPECT_THAT(ErrorOf(Images(1, 0xffffffff, 0xffffffff, "x"), kLabels),
              HasSubstr("rows and columns must be in [1, 4096]"));
}

// What follows a plain file's header is no more than the file.
TEST(Idx, PlainFileThatPromisesMoreThanItHasIsRefusedAtOnce) {
  EXPECT_THAT(ErrorOf(Images(1, 100, 100, "x"), kLabels),
              HasSubstr("more than a file of this size can hold"));
}

class IdxFolder : public testing::Test {
 protected:
  absl::StatusOr<DataSplit> Load() {
    config::Data data;
    data.mutable_idx()->set_folder("digits");
    *data.mutable_normalisation() = normalisation_;
    if (normalisation_.kind_case() == config::Normalisation::KIND_NOT_SET)
      data.clear_normalisation();
    return LoadData(data, model_, folder_.path());
  }
  void Write(const std::string& train_images, const std::string& train_labels,
             const std::string& test_images, const std::string& test_labels) {
    std::filesystem::create_directory(digits());
    folder_.Write("digits/train-images-idx3-ubyte", train_images);
    folder_.Write("digits/train-labels-idx1-ubyte", train_labels);
    folder_.Write("digits/t10k-images-idx3-ubyte", test_images);
    folder_.Write("digits/t10k-labels-idx1-ubyte", test_labels);
  }
  config::Model model_;
  config::Normalisation normalisation_;
  std::string digits() const { return folder_.File("digits"); }
  TempFolder folder_;
};

TEST_F(IdxFolder, MissingFileNamesThePathsAndTheFix) {
  const auto data = Load();
  EXPECT_EQ(data.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(
      std::string(data.status().message()),
      AllOf(HasSubstr(digits() + "/train-images-idx3-ubyte, "),
            HasSubstr("idx4-ubyte.gz is there"),
            HasSubstr("slackline data fetch mnist"), HasSubstr("--data-dir")));
}

TEST_F(IdxFolder, FilesMayBePlainOrGzip) {
  std::filesystem::create_directory(digits());
  folder_.Write("digits/train-images-idx3-ubyte", kImages);
  WriteGzip(digits() + "/train-labels-idx1-ubyte.gz", kLabels);
  WriteGzip(digits() + "/t10k-images-idx3-ubyte.gz", Images(1, 1, 2, "ab"));
  folder_.Write("digits/t10k-labels-idx1-ubyte", Labels(1, "\3"));
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(RowsOf(*data->train).labels, ElementsAre(7, 0, 9));
  EXPECT_EQ(data->test->examples(), 1);
  EXPECT_EQ(data->test->label(0), 3);
  EXPECT_THAT(data->description, testing::Not(HasSubstr("stand-in")));
}

TEST_F(IdxFolder, TestImagesOfAnotherSizeAreRefused) {
  Write(kImages, kLabels, Images(1, 1, 3, "abc"), Labels(1, "\3"));
  EXPECT_THAT(std::string(Load().status().message()),
              AllOf(HasSubstr("have inputs of 1x1x2"), HasSubstr("of 1x1x3"),
                    HasSubstr("must be of one kind")));
}

TEST_F(IdxFolder, GatherGivesRowsInTheOrderAsked) {
  Write(kImages, kLabels, Images(1, 1, 2, "ab"), Labels(1, "\3"));
  normalisation_.mutable_none();
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  std::vector<float> inputs(8);
  std::vector<int64_t> labels(4);
  data->train->Gather({2, 0, 2, 1}, inputs.data(), labels.data());
  EXPECT_THAT(labels, ElementsAre(9, 7, 9, 0));
  EXPECT_THAT(inputs, ElementsAre(Level(4), Level(255), Level(0), Level(1),
                                  Level(4), Level(255), Level(2), Level(3)));
  EXPECT_EQ(data->train->classes(), 10);
  EXPECT_THAT(data->description,
              HasSubstr("3 training and 1 test examples, images of 1x1x2, 10 "
                        "classes; inputs as they are"));
}

// The bits of every run with MNIST so far.
TEST_F(IdxFolder, GivenFiguresOfMnistGiveTheFloatsOfLiterals) {
  std::string pixels;
  for (int pixel = 0; pixel < 256; ++pixel) pixels += static_cast<char>(pixel);
  Write(Images(1, 16, 16, pixels), Labels(1, "\1"), Images(1, 16, 16, pixels),
        Labels(1, std::string(1, '\0')));
  normalisation_.mutable_given()->add_mean(0.1307);
  normalisation_.mutable_given()->add_deviation(0.3081);
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  const std::vector<float> inputs = RowsOf(*data->test).inputs;
  for (int pixel = 0; pixel < 256; ++pixel) {
    EXPECT_EQ(inputs[pixel],
              (static_cast<float>(pixel) / 255.0f - 0.1307f) / 0.3081f);
  }
  EXPECT_THAT(
      data->description,
      HasSubstr("; inputs normalised: (x - 0.1307) / 0.3081, as given"));
}

TEST_F(IdxFolder, WithoutAWordImagesAreNormalisedByTheTrainingImages) {
  Write(Images(2, 1, 2, std::string("\0\377\0\377", 4)), Labels(2, "\1\2"),
        Images(1, 1, 2, "\377\377"), Labels(1, "\2"));
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(RowsOf(*data->train).inputs, ElementsAre(-1, 1, -1, 1));
  EXPECT_THAT(RowsOf(*data->test).inputs, ElementsAre(1, 1));
  EXPECT_THAT(data->description,
              HasSubstr("; inputs normalised: (x - 0.5) / 0.5, computed over "
                        "all numbers of the training inputs"));
}

TEST_F(IdxFolder, TestLabelBeyondTheTrainingLabelsNamesFileAndOffset) {
  Write(kImages, kLabels, Images(2, 1, 2, "abcd"), Labels(2, "\3\12"));
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("digits/t10k-labels-idx1-ubyte, offset 9: label 10 is "
                        "outside [0, 10), the labels of the training data"));
}

TEST_F(IdxFolder, AnyNumberOfClassesWillDo) {
  const auto many = [&](uint32_t largest) {
    folder_.Write(
        "digits/train-labels-idx1-int",
        Idx(0xc01, {3}, BigEndian(largest) + BigEndian(0) + BigEndian(5)));
    return Load();
  };
  Write(kImages, kLabels, Images(1, 1, 2, "ab"), Labels(1, "\3"));
  std::filesystem::remove(digits() + "/train-labels-idx1-ubyte");
  const auto data = many(1000);
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->classes(), 1001);
  EXPECT_EQ(data->test->classes(), 1001);
  EXPECT_THAT(std::string(many(1 << 20).status().message()),
              HasSubstr("train-labels-idx1-int, offset 8: label 1048576 is too "
                        "large, at most 1048575"));
  EXPECT_THAT(std::string(many(0xfffffffe).status().message()),
              HasSubstr("label -2 is too small, at least 0"));
}

TEST_F(IdxFolder, OneClassIsNothingToLearn) {
  Write(Images(1, 1, 2, "ab"), Labels(1, std::string(1, '\0')),
        Images(1, 1, 2, "ab"), Labels(1, std::string(1, '\0')));
  EXPECT_THAT(std::string(Load().status().message()),
              HasSubstr("all have the label 0; at least two classes"));
}

TEST_F(IdxFolder, ModelThatTakesOtherImagesIsRefusedByName) {
  const std::string labels = Labels(2, std::string("\0\1", 2));
  const std::string images = Idx(0x804, {2, 32, 32, 3}, std::string(6144, 'x'));
  std::filesystem::create_directory(digits());
  for (const char* const part : {"train", "t10k"}) {
    const std::string to = std::string("digits/") + part;
    folder_.Write(to + "-images-idx4-ubyte", images);
    folder_.Write(to + "-labels-idx1-ubyte", labels);
  }
  model_.mutable_lenet();
  EXPECT_THAT(std::string(Load().status().message()),
              AllOf(HasSubstr("model.lenet takes images of 1x28x28; "),
                    HasSubstr("train-images-idx4-ubyte has 3x32x32; use mlp")));
  model_.mutable_mlp()->add_hidden(8);
  EXPECT_TRUE(Load().ok());
  // Labels of images are numbers, too.
  model_.mutable_linear();
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_THAT(RowsOf(*data->train).numbers, ElementsAre(0, 1));
}

TEST_F(IdxFolder, LogisticRegressionOfThreeClassesIsRefusedByName) {
  Write(Images(3, 1, 2, "abcdef"), Labels(3, std::string("\0\1\2", 3)),
        Images(1, 1, 2, "ab"), Labels(1, "\1"));
  model_.mutable_logistic();
  EXPECT_THAT(std::string(Load().status().message()),
              AllOf(HasSubstr("model.logistic separates two classes; "),
                    HasSubstr("has 3; use softmax {}")));
}

using StandIn = IdxFolder;

TEST_F(StandIn, LoadsAndSaysThatItIsNotMnist) {
  ASSERT_TRUE(
      WriteStandInMnist(digits(),
                        {.seed = 1, .train_examples = 50, .test_examples = 20})
          .ok());
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_EQ(data->train->examples(), 50);
  EXPECT_EQ(data->test->examples(), 20);
  EXPECT_EQ(data->train->features(), 784);
  EXPECT_THAT(data->description, HasSubstr("generated stand-in, not MNIST"));
}

TEST_F(StandIn, SameSeedGivesSameBytes) {
  const auto images = [this](uint64_t seed) {
    EXPECT_TRUE(
        WriteStandInMnist(
            digits(), {.seed = seed, .train_examples = 5, .test_examples = 5})
            .ok());
    return ReadWholeFile(digits() + "/train-images-idx3-ubyte");
  };
  const std::string first = images(1);
  EXPECT_NE(first, images(2));
  EXPECT_EQ(first, images(1));
}

TEST_F(StandIn, NeverOverwritesFilesWithoutTheMarker) {
  std::filesystem::create_directory(digits());
  folder_.Write("digits/t10k-labels-idx1-ubyte.gz", "real");
  const absl::Status status = WriteStandInMnist(digits(), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("t10k-labels-idx1-ubyte.gz"));
  EXPECT_FALSE(std::filesystem::exists(digits() + "/" + kStandInMarker));
}

// The mean picture of each class, from the training set, tells the classes of
// the test set apart far better than chance (0.1): there is something to learn.
TEST_F(StandIn, ClassesCanBeToldApart) {
  ASSERT_TRUE(
      WriteStandInMnist(
          digits(), {.seed = 1, .train_examples = 3000, .test_examples = 500})
          .ok());
  const auto data = Load();
  ASSERT_TRUE(data.ok()) << data.status();
  const int64_t features = data->train->features();
  std::vector<std::vector<double>> mean(10, std::vector<double>(features));
  std::vector<int> count(10);
  std::vector<float> input(features);
  int64_t label = 0;
  for (int64_t row = 0; row < data->train->examples(); ++row) {
    data->train->Gather({row}, input.data(), &label);
    ++count[label];
    for (int64_t i = 0; i < features; ++i) mean[label][i] += input[i];
  }
  for (int c = 0; c < 10; ++c) {
    ASSERT_GT(count[c], 150) << "class " << c;
    for (double& value : mean[c]) value /= count[c];
  }
  int correct = 0;
  for (int64_t row = 0; row < data->test->examples(); ++row) {
    data->test->Gather({row}, input.data(), &label);
    std::vector<double> distance(10);
    for (int c = 0; c < 10; ++c) {
      for (int64_t i = 0; i < features; ++i) {
        distance[c] += (input[i] - mean[c][i]) * (input[i] - mean[c][i]);
      }
    }
    correct +=
        std::min_element(distance.begin(), distance.end()) - distance.begin() ==
        label;
  }
  EXPECT_GT(correct, 250) << "of 500";
}

}  // namespace slackline::idx_test
