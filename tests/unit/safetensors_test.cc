// Goal: what is written is read back bit by bit, others can read it, and no
// damaged file is believed or crashes the reader.
#include "common/io/safetensors.h"

#include <sys/stat.h>

#include <cstring>
#include <iterator>
#include <limits>
#include <map>
#include <vector>

#include "common/io/atomic_file.h"
#include "common/io/sha256.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/temp_folder.h"

namespace slackline::safetensors_test {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<float> kWeight = {
    1, 2.5f, -3, 4, std::numeric_limits<float>::infinity(), -0.0f};
const std::vector<float> kBias = {7, 8};

std::vector<TensorView> TwoTensors() {
  return {{"net.weight", {2, 3}, kWeight}, {"net.bias", {2}, kBias}};
}

// A file with this JSON header and this many bytes of data.
std::string RawFile(const std::string& header, size_t data_bytes) {
  const uint64_t size = header.size();
  std::string file(reinterpret_cast<const char*>(&size), sizeof(size));
  return file + header + std::string(data_bytes, '\0');
}

std::string ReadError(const std::string& content) {
  const TempFolder folder;
  const auto file = ReadSafetensors(folder.Write("file.safetensors", content));
  EXPECT_FALSE(file.ok()) << content;
  return std::string(file.status().message());
}

TEST(Safetensors, RoundTripKeepsEveryBit) {
  const TempFolder folder;
  const std::string path = folder.File("model.safetensors");
  ASSERT_TRUE(
      WriteSafetensors(path, TwoTensors(), {{"step", "12"}, {"job", "a \"b\""}})
          .ok());
  const auto file = ReadSafetensors(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata,
            (TensorMetadata{{"step", "12"}, {"job", "a \"b\""}}));
  ASSERT_EQ(file->tensors.size(), 2);
  EXPECT_EQ(file->tensors[0].name, "net.weight");
  EXPECT_THAT(file->tensors[0].shape, ElementsAre(2, 3));
  ASSERT_EQ(file->tensors[0].values.size(), kWeight.size());
  EXPECT_EQ(std::memcmp(file->tensors[0].values.data(), kWeight.data(), 24), 0);
  EXPECT_EQ(file->tensors[1].name, "net.bias");
  EXPECT_EQ(file->tensors[1].values, kBias);
  const std::filesystem::directory_iterator files(folder.path());
  EXPECT_EQ(std::distance(begin(files), end(files)), 1)
      << "the temporary file is left";
}

// As another program would read it, from the format's description alone.
TEST(Safetensors, LayoutIsTheFormats) {
  const TempFolder folder;
  const std::string path = folder.File("model.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, TwoTensors(), {{"step", "12"}}).ok());
  const std::string bytes = ReadWholeFile(path);
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  EXPECT_EQ(header_bytes % 8, 0);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_bytes));
  EXPECT_EQ(header, nlohmann::json::parse(R"({
      "__metadata__": {"step": "12"},
      "net.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
      "net.bias": {"dtype": "F32", "shape": [2], "data_offsets": [24, 32]}})"));
  ASSERT_EQ(bytes.size(), 8 + header_bytes + 32);
  float last = 0;
  std::memcpy(&last, bytes.data() + bytes.size() - 4, 4);
  EXPECT_EQ(last, 8);
}

TEST(Safetensors, EqualContentGivesEqualBytes) {
  const TempFolder folder;
  ASSERT_TRUE(
      WriteSafetensors(folder.File("a"), TwoTensors(), {{"x", "1"}, {"y", "2"}})
          .ok());
  ASSERT_TRUE(
      WriteSafetensors(folder.File("b"), TwoTensors(), {{"y", "2"}, {"x", "1"}})
          .ok());
  EXPECT_EQ(ReadWholeFile(folder.File("a")), ReadWholeFile(folder.File("b")));
}

TEST(Safetensors, TensorThatDoesNotFitIsRefusedAndTheOldFileStays) {
  const TempFolder folder;
  const std::string path = folder.Write("model", "old");
  std::vector<TensorView> tensors = TwoTensors();
  tensors[1].shape = {3};
  EXPECT_THAT(std::string(WriteSafetensors(path, tensors, {}).message()),
              AllOf(HasSubstr("'net.bias'"),
                    HasSubstr("shape [3] does not make 2 values")));
  tensors = TwoTensors();
  tensors[1].name = "net.weight";
  EXPECT_THAT(std::string(WriteSafetensors(path, tensors, {}).message()),
              HasSubstr("the name is taken"));
  EXPECT_EQ(ReadWholeFile(path), "old");
}

TEST(Safetensors, MissingFolderIsAnErrorThatNamesIt) {
  const TempFolder folder;
  const absl::Status status =
      WriteSafetensors(folder.File("none/model"), TwoTensors(), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("none/model"));
  EXPECT_EQ(ReadSafetensors(folder.File("none/model")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const TempFolder folder;
  const std::string path = folder.File("model");
  ASSERT_TRUE(WriteSafetensors(path, TwoTensors(), {}).ok());
  const std::string bytes = ReadWholeFile(path);
  for (size_t size = 0; size < bytes.size(); ++size) {
    folder.Write("cut", bytes.substr(0, size));
    EXPECT_EQ(ReadSafetensors(folder.File("cut")).status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
  folder.Write("longer", bytes + "x");
  EXPECT_EQ(ReadSafetensors(folder.File("longer")).status().code(),
            absl::StatusCode::kDataLoss);
}

// Random damage to the header either still is a valid file or gives an error;
// run under the sanitizers this finds reads out of bounds.
TEST(Safetensors, DamagedHeadersDoNotCrash) {
  const TempFolder folder;
  const std::string path = folder.File("model");
  ASSERT_TRUE(WriteSafetensors(path, TwoTensors(), {{"step", "12"}}).ok());
  const std::string bytes = ReadWholeFile(path);
  Rng rng(1);
  int errors = 0;
  for (int i = 0; i < 500; ++i) {
    std::string damaged = bytes;
    for (int64_t flips = rng.Between(1, 4); flips > 0; --flips) {
      damaged[rng.Below(bytes.size() - 32)] = static_cast<char>(rng.Below(256));
    }
    folder.Write("damaged", damaged);
    errors += !ReadSafetensors(folder.File("damaged")).ok();
  }
  EXPECT_GT(errors, 250);
}

TEST(Safetensors, HeaderThatContradictsItselfOrTheFileIsRefused) {
  EXPECT_THAT(ReadError(RawFile("[]", 0)), HasSubstr("not a JSON map"));
  EXPECT_THAT(ReadError(RawFile("{", 0)), HasSubstr("not a JSON map"));
  EXPECT_THAT(ReadError(RawFile(R"({"a":{"dtype":"F32","shape":[2]}})", 8)),
              HasSubstr("tensor 'a'"));
  EXPECT_THAT(
      ReadError(RawFile(
          R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)),
      HasSubstr("tensor 'a'"));
  EXPECT_THAT(
      ReadError(RawFile(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}})", 8)),
      HasSubstr("tensor 'a': bytes [0, 16) are not within the data's [0, 8)"));
  EXPECT_THAT(
      ReadError(RawFile(
          R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8)),
      HasSubstr("shape [3] of F32 does not make the 8 bytes at offset 0"));
  EXPECT_THAT(
      ReadError(RawFile(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8)),
      HasSubstr("starts at offset 4, the tensors before it end at 0"));
  EXPECT_THAT(
      ReadError(RawFile(
          R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 8)),
      HasSubstr("the tensors end at offset 4, the data at 8"));
  EXPECT_THAT(
      ReadError(RawFile(
          R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4],"data_offsets":[0,0]}})",
          0)),
      HasSubstr("does not make"));
  EXPECT_THAT(
      ReadError(RawFile(
          R"({"a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})", 4)),
      HasSubstr("type BF16 is not supported"));
  EXPECT_THAT(ReadError(RawFile(R"({"__metadata__":{"a":1}})", 0)),
              HasSubstr("value of 'a' is not text"));
  EXPECT_THAT(ReadError("\xff\xff\xff\xff\xff\xff\xff\x7f{}"),
              HasSubstr("the header size"));
}

TEST(Safetensors, APipeOrAFolderIsNotWaitedFor) {
  const TempFolder folder;
  ASSERT_EQ(mkfifo(folder.File("pipe").c_str(), 0600), 0);
  for (const std::string& path : {folder.File("pipe"), folder.path()}) {
    const absl::Status status = ReadSafetensors(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(path + " is no regular file"));
  }
}

// 1, -2.5 and a value that only F64 has, each in the bits of its type.
TEST(Safetensors, OtherFloatsAreReadAsFloat32) {
  const TempFolder folder;
  const auto bytes_of = [](const auto& values) {
    const auto* const begin = reinterpret_cast<const std::byte*>(values.data());
    return std::vector<std::byte>(begin,
                                  begin + values.size() * sizeof(values[0]));
  };
  const std::vector<uint16_t> halves = {0x3C00, 0xC100};
  const std::vector<uint16_t> brains = {0x3F80, 0xC020};
  // More than are read at once.
  std::vector<double> doubles(300'000, -2.5);
  doubles[0] = 1;
  doubles.back() = 0.1;
  const std::vector<int64_t> counts = {7};
  const std::vector<TypedTensor> others = {
      {"h", "F16", {2}, bytes_of(halves)},
      {"b", "BF16", {2, 1}, bytes_of(brains)},
      {"d", "F64", {300'000}, bytes_of(doubles)},
      {"n", "I64", {}, bytes_of(counts)}};
  const std::string path = folder.File("m");
  ASSERT_TRUE(WriteSafetensors(path, TwoTensors(), {{"a", "b"}}, others).ok());
  EXPECT_THAT(std::string(ReadSafetensors(path).status().message()),
              HasSubstr("tensor 'h': type F16 is not supported"));
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::map<std::string, TensorPlace> places;
  for (const TensorPlace& place : (*reader)->header().tensors)
    places[place.name] = place;
  const auto read = [&](const std::string& name) {
    const auto tensor = (*reader)->ReadFloats(places.at(name));
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    return tensor.ok() ? tensor->values : std::vector<float>();
  };
  EXPECT_EQ(read("net.bias"), kBias);
  EXPECT_THAT(read("h"), ElementsAre(1, -2.5f));
  EXPECT_THAT(read("b"), ElementsAre(1, -2.5f));
  const std::vector<float> floats = read("d");
  ASSERT_EQ(floats.size(), doubles.size());
  for (size_t i = 0; i < floats.size(); ++i)
    ASSERT_EQ(floats[i], static_cast<float>(doubles[i])) << i;
  EXPECT_THAT(
      std::string((*reader)->ReadFloats(places.at("n")).status().message()),
      AllOf(HasSubstr("'n'"), HasSubstr("type I64 cannot be read")));
}

TEST(Safetensors, AValueThatNoFloat32HasIsAnError) {
  const TempFolder folder;
  const double values[] = {std::numeric_limits<double>::infinity(), 1e300};
  for (const double value : values) {
    std::vector<std::byte> bytes(sizeof(value));
    std::memcpy(bytes.data(), &value, sizeof(value));
    const std::vector<TypedTensor> others = {{"d", "F64", {1}, bytes}};
    ASSERT_TRUE(WriteSafetensors(folder.File("m"), {}, {}, others).ok());
    const auto reader = SafetensorsReader::Open(folder.File("m"));
    ASSERT_TRUE(reader.ok()) << reader.status();
    const auto read = (*reader)->ReadFloats((*reader)->header().tensors[0]);
    EXPECT_EQ(read.ok(), value != 1e300) << read.status();
    if (!read.ok()) {
      EXPECT_THAT(std::string(read.status().message()),
                  HasSubstr("'d': its value 1e+300 of F64"));
    }
  }
}

TEST(AtomicFile, ReplacesTheContent) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "a longer old content");
  ASSERT_TRUE(WriteFileAtomically(path, {"new", " ", "content"}).ok());
  EXPECT_EQ(ReadWholeFile(path), "new content");
}

TEST(AtomicFile, HasItsNameOnceItIsCommitted) {
  const TempFolder folder;
  const std::string path = folder.Write("file", "old");
  for (const bool commit : {false, true}) {
    {
      auto file = AtomicFile::Create(path);
      ASSERT_TRUE(file.ok()) << file.status();
      EXPECT_TRUE((*file)->Append("new ").ok());
      EXPECT_TRUE((*file)->Append("content").ok());
      EXPECT_EQ(ReadWholeFile(path), "old");
      if (commit) {
        EXPECT_TRUE((*file)->Commit().ok());
      }
    }
    EXPECT_EQ(ReadWholeFile(path), commit ? "new content" : "old");
    const std::filesystem::directory_iterator files(folder.path());
    EXPECT_EQ(std::distance(begin(files), end(files)), 1);
  }
}

TEST(AtomicFile, AFolderIsSyncedOrNamed) {
  const TempFolder folder;
  EXPECT_TRUE(SyncFolder(folder.path()).ok());
  EXPECT_THAT(std::string(SyncFolder(folder.File("none")).message()),
              HasSubstr(folder.File("none")));
}

// Of as many tensors as a part of a checkpoint may have: in time that grows
// with their number alone.
TEST(Safetensors, AHeaderOfManyTensorsIsMadeAndReadAgain) {
  std::vector<TensorHeading> headings;
  for (int i = 0; i < 50000; ++i)
    headings.push_back({"t\"" + std::to_string(i), "F32", {2, 1}, 8});
  const auto header = MakeSafetensorsHeader("f", headings, {{"a", "b"}});
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->size() % 8, 0);
  const auto read = ParseSafetensorsHeader(
      "f", absl::string_view(*header).substr(kSafetensorsSizeBytes), 50000 * 8);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->metadata, (TensorMetadata{{"a", "b"}}));
  ASSERT_EQ(read->tensors.size(), headings.size());
  for (size_t i = 0; i < headings.size(); ++i) {
    ASSERT_EQ(read->tensors[i].name, headings[i].name);
    ASSERT_EQ(read->tensors[i].begin, i * 8);
  }
}

// FIPS 180-2, appendix B.1, and the hash of nothing.
TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(Sha256Hex("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex(""),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

TEST(Sha256, FileHasTheHashOfItsContent) {
  const TempFolder folder;
  const std::string content(3'000'000, 'x');
  const auto hash = Sha256File(folder.Write("file", content));
  ASSERT_TRUE(hash.ok()) << hash.status();
  EXPECT_EQ(*hash, Sha256Hex(content));
  EXPECT_EQ(Sha256File("/dev/zero").status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(Sha256File(folder.File("none")).status().code(),
            absl::StatusCode::kNotFound);
}

TEST(TensorsSha256, DependsOnNamesShapesValuesAndOrderOnly) {
  const std::string hash = TensorsSha256(TwoTensors());
  EXPECT_EQ(TensorsSha256(TwoTensors()), hash);
  std::vector<TensorView> changed = TwoTensors();
  changed[0].name = "net.weighs";
  EXPECT_NE(TensorsSha256(changed), hash);
  changed = TwoTensors();
  changed[0].shape = {3, 2};
  EXPECT_NE(TensorsSha256(changed), hash);
  changed = TwoTensors();
  const std::vector<float> other_bias = {7, 8.000001f};
  changed[1].values = other_bias;
  EXPECT_NE(TensorsSha256(changed), hash);
  changed = TwoTensors();
  std::swap(changed[0], changed[1]);
  EXPECT_NE(TensorsSha256(changed), hash);

  const TempFolder folder;
  ASSERT_TRUE(
      WriteSafetensors(folder.File("a"), TwoTensors(), {{"step", "12"}}).ok());
  const auto file = ReadSafetensors(folder.File("a"));
  ASSERT_TRUE(file.ok()) << file.status();
  std::vector<TensorView> views;
  for (const Tensor& tensor : file->tensors) views.push_back(tensor.view());
  EXPECT_EQ(TensorsSha256(views), hash);
}

TEST(Safetensors, TensorsOfOtherTypesAreCheckedByNameTypeAndSize) {
  const TempFolder folder;
  const auto write = [&](const TypedTensor& other) {
    const std::vector<TypedTensor> others = {other};
    return std::string(
        WriteSafetensors(folder.File("m"), TwoTensors(), {}, others).message());
  };
  const std::vector<std::byte> eight(8);
  EXPECT_EQ(write({"count", "I64", {}, eight}), "");
  EXPECT_EQ(write({"mask", "BOOL", {2, 4}, eight}), "");
  EXPECT_EQ(write({"freqs_cis", "C64", {1}, eight}), "");
  EXPECT_THAT(write({std::string(TwoTensors()[0].name), "I64", {}, eight}),
              HasSubstr("the name is taken"));
  EXPECT_THAT(write({"count", "INT64", {}, eight}),
              HasSubstr("type is 'INT64', which is none of the format"));
  EXPECT_THAT(write({"count", "I64", {2}, eight}),
              HasSubstr("shape [2] does not make 1 values"));
  EXPECT_THAT(write({"count", "I64", {int64_t{1} << 60}, eight}),
              HasSubstr("does not make 1 values"));
}

TEST(Safetensors, ATensorWithoutElementsIsWrittenAndReadBesideOthers) {
  const TempFolder folder;
  const std::vector<TypedTensor> empty = {{"a_queue", "F32", {0, 8}, {}},
                                          {"z_queue", "F32", {8, 0}, {}}};
  ASSERT_TRUE(WriteSafetensors(folder.File("m"), TwoTensors(), {}, empty).ok());
  const auto file = ReadSafetensors(folder.File("m"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors.size(), 4u);
  EXPECT_EQ(file->tensors[2].name, "a_queue");
  EXPECT_EQ(file->tensors[2].shape, (std::vector<int64_t>{0, 8}));
  EXPECT_TRUE(file->tensors[2].values.empty());
}

}  // namespace slackline::safetensors_test
