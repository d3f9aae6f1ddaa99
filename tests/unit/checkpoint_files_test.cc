// Goal: a checkpoint is read back bit by bit however it is cut, and nothing
// that is torn, changed, mixed up or out of its bounds is believed; the newest
// whole one is found, and no other is removed than those that are too many.
// Method: small checkpoints against the tensors they were made of; every bit of
// one flipped, every file cut at every length; folders as crashes leave them.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/best_checkpoint.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/kept_file.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/checkpoint/stored_checkpoint.h"
#include "common/config/cluster_config.h"
#include "common/io/safetensors.h"
#include "common/io/state_hash.h"
#include "common/rng.h"
#include "common/status.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"

namespace slackline::checkpoint_files_test {

namespace fs = std::filesystem;

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;

constexpr uint64_t kRun = 0xabcdef;

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

// The folder of the checkpoint that `path` names.
absl::StatusOr<std::string> FindCheckpoint(
    const std::string& path, std::vector<std::string>* passed_over) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<StoredCheckpoint> stored,
                      OpenCheckpoint(path, passed_over));
  return stored->folder();
}

Payload Floats(const std::vector<float>& values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

std::string Bits(const Payload& payload) {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

// What a job has: tables whole, in one place.
struct Model {
  struct Table {
    std::vector<std::vector<float>> tensors;  // Values, then slots.
  };
  checkpoint::Manifest manifest;  // Without parts.
  std::map<std::string, Table> tables;
};

void AddTable(Rng& rng, const std::string& name,
              const std::vector<int64_t>& shape, const std::string& optimizer,
              Model* model) {
  checkpoint::Table& table = *model->manifest.add_table();
  table.set_name(name);
  size_t elements = 1;
  for (const int64_t extent : shape) {
    table.add_shape(extent);
    elements *= static_cast<size_t>(extent);
  }
  int slots = 0;
  if (optimizer == "momentum") {
    slots = 1;
    table.mutable_optimizer()->mutable_momentum()->set_learning_rate(0.1);
  } else if (optimizer == "adam") {
    slots = 2;
    table.mutable_optimizer()->mutable_adam()->set_learning_rate(1e-3);
  } else if (optimizer == "sgd") {
    table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  }
  for (int i = 0; i <= slots; ++i) {
    std::vector<float>& values = model->tables[name].tensors.emplace_back();
    for (size_t k = 0; k < elements; ++k)
      values.push_back(static_cast<float>(rng.Uniform() - 0.5));
  }
}

Model MakeModel(uint64_t seed, int64_t clock = 1200) {
  Rng rng(seed);
  Model model;
  checkpoint::Manifest& manifest = model.manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_job("digits");
  manifest.set_run(kRun);
  manifest.set_mode("ssp:3");
  manifest.set_workers(2);
  manifest.set_steps_total(5000);
  manifest.set_steps_per_epoch(100);
  manifest.set_clock(clock);
  manifest.set_seconds(0.1 * static_cast<double>(clock));
  AddTable(rng, "net.0.weight", {6, 5}, "momentum", &model);
  AddTable(rng, "net.0.bias", {7}, "adam", &model);
  AddTable(rng, "scale", {}, "sgd", &model);
  AddTable(rng, "a \"b\"[0, 1)/0 \xc3\xa4", {2}, "", &model);
  return model;
}

ShardState ShardOf(const Model& model, const std::string& table, int64_t begin,
                   int64_t end, Version version = 12) {
  const auto& tensors = model.tables.at(table).tensors;
  ShardState shard = {
      .table = table, .region = {begin, end}, .version = version, .values = {}};
  for (size_t i = 0; i < tensors.size(); ++i) {
    Payload payload =
        Floats({tensors[i].begin() + begin, tensors[i].begin() + end});
    if (i == 0) {
      shard.values = std::move(payload);
    } else {
      shard.slots.push_back(std::move(payload));
    }
  }
  return shard;
}

// All tables, in shards of at most so many elements.
std::vector<ShardState> Shards(const Model& model, int64_t size) {
  std::vector<ShardState> shards;
  for (const auto& [name, table] : model.tables) {
    const int64_t elements = static_cast<int64_t>(table.tensors.front().size());
    for (int64_t begin = 0; begin < elements; begin += size) {
      shards.push_back(
          ShardOf(model, name, begin, std::min(begin + size, elements)));
    }
  }
  return shards;
}

// Shards dealt out to the parts in turn.
checkpoint::Manifest WriteParts(const std::string& folder, const Model& model,
                                const std::vector<ShardState>& shards,
                                int parts) {
  checkpoint::Manifest manifest = model.manifest;
  std::vector<std::vector<ShardState>> of_part(parts);
  for (size_t i = 0; i < shards.size(); ++i)
    of_part[i % parts].push_back(shards[i]);
  for (int p = 0; p < parts; ++p) {
    *manifest.add_part() = Must(
        WritePart(folder, absl::StrCat("server-", p, "-thread-0.safetensors"),
                  of_part[p]));
  }
  return manifest;
}

std::string Write(const std::string& folder, const Model& model,
                  int64_t shard_size = 4, int parts = 2) {
  Must(WriteManifest(
      folder, WriteParts(folder, model, Shards(model, shard_size), parts)));
  return folder;
}

// With what two programs keep.
std::string WriteWithPrograms(const std::string& folder, const Model& model) {
  checkpoint::Manifest manifest =
      WriteParts(folder, model, Shards(model, 16), 1);
  *manifest.add_kept() =
      Must(WriteKept(folder, 0, {.program = "what a program keeps"}));
  *manifest.add_kept() = Must(WriteKept(folder, 3, {.program = "x"}));
  Must(WriteManifest(folder, manifest));
  return folder;
}

// As a run does it, in cut number `cut`.
absl::StatusOr<std::string> Complete(const std::string& root,
                                     const Model& model, int32_t cut,
                                     int keep = 100, uint64_t run = kRun) {
  const std::string partial = PartialFolder(root, run, cut);
  return CompleteCheckpoint(
      root, run, cut, WriteParts(partial, model, Shards(model, 4), 2), keep);
}

absl::Status OpenError(const std::string& folder) {
  return StoredCheckpoint::Open(folder).status();
}

void ExpectEqual(const ShardState& read, const ShardState& expected) {
  EXPECT_EQ(read.table, expected.table);
  EXPECT_EQ(read.region, expected.region);
  EXPECT_EQ(read.version, expected.version);
  EXPECT_EQ(Bits(read.values), Bits(expected.values));
  ASSERT_EQ(read.slots.size(), expected.slots.size());
  for (size_t s = 0; s < read.slots.size(); ++s)
    EXPECT_EQ(Bits(read.slots[s]), Bits(expected.slots[s]));
}

bool HasContentOf(const StoredCheckpoint& stored, const Model& model) {
  for (const auto& [name, table] : model.tables) {
    const ShardState expected = ShardOf(
        model, name, 0, static_cast<int64_t>(table.tensors.front().size()));
    const auto read = stored.Read(name, expected.region, FloatsForm());
    if (!read.ok() || Bits(read->values) != Bits(expected.values) ||
        read->version != expected.version ||
        read->slots.size() != expected.slots.size()) {
      return false;
    }
    for (size_t s = 0; s < expected.slots.size(); ++s) {
      if (Bits(read->slots[s]) != Bits(expected.slots[s])) return false;
    }
  }
  return true;
}

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.push_back(entry.path().filename().string());
  return names;
}

// Writes over a file without a sync, which would take most of a test's time.
void Overwrite(const std::string& path, const std::string& content) {
  std::ofstream file(path, std::ios::binary);
  file << content;
  ASSERT_TRUE(file.flush().good()) << path;
}

void FlipLastBit(const std::string& path) {
  std::string content = ReadWholeFile(path);
  content.back() = static_cast<char>(content.back() ^ 1);
  Overwrite(path, content);
}

// ---- Parts ------------------------------------------------------------------

TEST(PartFileTest, ShardsAreReadBackBitByBit) {
  const TempFolder folder;
  Model model = MakeModel(1);
  model.tables["net.0.bias"].tensors[0] = {
      -0.0f,
      1,
      std::numeric_limits<float>::infinity(),
      std::numeric_limits<float>::quiet_NaN(),
      1e-45f,
      3,
      4};
  const std::vector<ShardState> shards = {
      ShardOf(model, "net.0.weight", 5, 30, kVersionMax),
      ShardOf(model, "net.0.bias", 0, 7, 0),
      ShardOf(model, "a \"b\"[0, 1)/0 \xc3\xa4", 1, 2)};
  const checkpoint::Part part =
      Must(WritePart(folder.File("new/folder"), "p.safetensors", shards));
  EXPECT_EQ(part.file(), "p.safetensors");
  EXPECT_EQ(part.shards(), 3);
  EXPECT_EQ(part.bytes(), static_cast<int64_t>(fs::file_size(
                              folder.File("new/folder/p.safetensors"))));
  EXPECT_THAT(NamesIn(folder.File("new/folder")), ElementsAre("p.safetensors"));
  const auto file = Must(PartFile::Open(folder.File("new/folder"), part));
  ASSERT_THAT(file->pieces(), SizeIs(3));
  for (size_t i = 0; i < shards.size(); ++i) {
    EXPECT_EQ(file->pieces()[i].slots,
              static_cast<int>(shards[i].slots.size()));
    EXPECT_TRUE(file->Check(file->pieces()[i]).ok());
    ExpectEqual(Must(file->Read(file->pieces()[i])), shards[i]);
  }
}

TEST(PartFileTest, OthersReadItAsSafetensors) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  const std::vector<ShardState> shards = {
      ShardOf(model, "net.0.weight", 5, 30, 12)};
  Must(WritePart(folder.path(), "p", shards));
  const SafetensorsFile file = Must(ReadSafetensors(folder.File("p")));
  ASSERT_THAT(file.tensors, SizeIs(2));
  EXPECT_EQ(file.tensors[0].name, "net.0.weight[5, 30)");
  EXPECT_EQ(file.tensors[1].name, "net.0.weight[5, 30)/0");
  EXPECT_THAT(file.tensors[1].shape, ElementsAre(25));
  EXPECT_EQ(Bits(Floats(file.tensors[0].values)), Bits(shards[0].values));
  EXPECT_EQ(Bits(Floats(file.tensors[1].values)), Bits(shards[0].slots[0]));
  ASSERT_THAT(file.metadata, SizeIs(1));
  EXPECT_EQ(file.metadata.at("net.0.weight[5, 30)"),
            absl::StrFormat("version 12, hash %016x",
                            StateHash(12, shards[0].values, shards[0].slots)));
}

TEST(PartFileTest, TheRunningSizeOfGradientsIsReadBackBitByBit) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  std::vector<ShardState> shards = {ShardOf(model, "net.0.weight", 5, 30),
                                    ShardOf(model, "net.0.bias", 0, 7)};
  shards[0].running_rms = RunningRms(0.1, 120);
  const auto file = Must(PartFile::Open(
      folder.path(), Must(WritePart(folder.path(), "p", shards))));
  EXPECT_EQ(Must(file->Read(file->pieces()[0])).running_rms,
            RunningRms(0.1, 120));
  EXPECT_EQ(Must(file->Read(file->pieces()[1])).running_rms, RunningRms());
  const SafetensorsFile others = Must(ReadSafetensors(folder.File("p")));
  EXPECT_EQ(others.metadata.at("net.0.weight[5, 30)"),
            absl::StrFormat("version 12, hash %016x, rms 3fb999999999999a of "
                            "120",
                            StateHash(12, shards[0].values, shards[0].slots)));
}

// With one gradient that waits, two kept versions, and what a rule remembers.
void GiveTurns(ShardState* shard, int64_t over = 9) {
  StoredTurns& turns = shard->turns.emplace();
  turns.turns.set_over(over);
  wire::Turns::Waiting& waiting = *turns.turns.add_waiting();
  waiting.set_clock(5);
  waiting.set_rank(1);
  waiting.set_base(7);
  waiting.set_rms(3);
  for (const int before : {4, 6}) {
    wire::Turns::Kept& kept = *turns.turns.add_kept();
    kept.set_turns(before);
    kept.set_version(static_cast<uint64_t>(before));
  }
  turns.turns.set_remembers(true);
  for (int tensor = 0; tensor < 4; ++tensor) {
    std::vector<float> floats;
    for (int64_t i = shard->region.begin(); i < shard->region.end(); ++i)
      floats.push_back(static_cast<float>(100 * tensor + i));
    turns.tensors.push_back(Floats(floats));
  }
}

void ExpectSameTurns(const ShardState& actual, const ShardState& expected) {
  ASSERT_TRUE(actual.turns.has_value());
  EXPECT_EQ(actual.turns->turns.SerializeAsString(),
            expected.turns->turns.SerializeAsString());
  ASSERT_THAT(actual.turns->tensors, SizeIs(expected.turns->tensors.size()));
  for (size_t i = 0; i < actual.turns->tensors.size(); ++i) {
    EXPECT_EQ(Bits(actual.turns->tensors[i]), Bits(expected.turns->tensors[i]));
  }
}

TEST(PartFileTest, TurnsAreReadBackBitByBit) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  std::vector<ShardState> shards = {ShardOf(model, "net.0.weight", 5, 30),
                                    ShardOf(model, "net.0.bias", 0, 7)};
  GiveTurns(&shards[0]);
  shards[0].running_rms = RunningRms(0.1, 120);
  shards[1].turns.emplace();  // No turn is over, and nothing waits.
  const auto file = Must(PartFile::Open(
      folder.path(), Must(WritePart(folder.path(), "p", shards))));
  ASSERT_THAT(file->pieces(), SizeIs(2));
  EXPECT_EQ(file->pieces()[0].slots, 1);
  EXPECT_EQ(file->pieces()[0].tensors(), 6);
  for (size_t i = 0; i < shards.size(); ++i) {
    EXPECT_TRUE(file->Check(file->pieces()[i]).ok());
    const ShardState read = Must(file->Read(file->pieces()[i]));
    ExpectEqual(read, shards[i]);
    ExpectSameTurns(read, shards[i]);
  }
  const SafetensorsFile others = Must(ReadSafetensors(folder.File("p")));
  EXPECT_EQ(others.tensors[2].name, "net.0.weight[5, 30)/turns/0");
  EXPECT_THAT(others.metadata.at("net.0.weight[5, 30)"),
              HasSubstr(" of 120, turns 1009"));
}

TEST(PartFileTest, TurnsOfAnotherShapeAreRefused) {
  const TempFolder folder;
  const std::string good =
      "version 1, hash 0000000000000001, turns 10011a041001180122020801";
  const auto why = [&](const std::vector<std::string>& names,
                       const std::string& metadata) {
    std::vector<TensorHeading> tensors;
    for (const std::string& name : names)
      tensors.push_back({absl::StrCat("t[0, 2)", name), "F32", {2}, 8});
    std::string content =
        Must(MakeSafetensorsHeader("p", tensors, {{"t[0, 2)", metadata}}));
    checkpoint::Part part;
    part.set_file("p");
    part.set_header_hash(BytesHash(content.data(), content.size()));
    content.append(8 * names.size(), '\0');
    part.set_bytes(static_cast<int64_t>(content.size()));
    part.set_shards(1);
    Overwrite(folder.File("p"), content);
    return Text(PartFile::Open(folder.path(), part).status());
  };
  EXPECT_EQ(why({"", "/0", "/turns/0", "/turns/1"}, good), "");
  EXPECT_EQ(why({"", "/turns/0", "/turns/1"}, good), "");
  EXPECT_THAT(why({"", "/0", "/turns/0"}, good),
              HasSubstr("the last shard has 1 tensors of its turns"));
  EXPECT_THAT(why({"", "/turns/0", "/turns/2"}, good),
              HasSubstr("is not the next tensor of the turns"));
  EXPECT_THAT(why({"", "/turns/0", "/0"}, good),
              HasSubstr("is not the next tensor of the turns"));
  EXPECT_THAT(why({"", "/turns/0", "/turns/1", "/turns/2"}, good),
              HasSubstr("is neither a shard"));
  for (const char* const text :
       {"1", "1G", "1001zz", "10 01", "100A",
        "1001, rms 3fb999999999999a of 120", "10018101"}) {
    EXPECT_THAT(
        why({""},
            absl::StrCat("version 1, hash 0000000000000001, turns ", text)),
        HasSubstr("does not give its version"))
        << text;
  }
}

TEST(PartFileTest, TensorsMayLieAtAnyAddress) {
  const TempFolder folder;
  std::string memory = "x";
  const std::vector<float> values = {1, 2, 3};
  memory.append(reinterpret_cast<const char*>(values.data()), 12);
  const ShardState shard = {.table = "t",
                            .region = {4, 7},
                            .values = Payload::Wrap(memory.data() + 1, 12, 0)};
  const checkpoint::Part part = Must(WritePart(folder.path(), "p", {shard}));
  const auto file = Must(PartFile::Open(folder.path(), part));
  ExpectEqual(Must(file->Read(file->pieces()[0])), shard);
}

TEST(PartFileTest, WithoutShardsThereIsNoFile) {
  const TempFolder folder;
  const checkpoint::Part part = Must(WritePart(folder.path(), "p", {}));
  EXPECT_EQ(part.shards(), 0);
  EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
}

TEST(PartFileTest, AShardThatIsNotOfItsSizeIsNotWritten) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  const auto why = [&](const std::function<void(ShardState*)>& change) {
    ShardState shard = ShardOf(model, "net.0.bias", 0, 7);
    change(&shard);
    return Text(WritePart(folder.path(), "p", {shard}).status());
  };
  EXPECT_THAT(why([](ShardState* shard) {
                shard->region = {0, 8};
              }),
              HasSubstr("net.0.bias[0, 8)"));
  EXPECT_THAT(why([](ShardState* shard) { shard->slots[1] = Floats({1}); }),
              HasSubstr("'net.0.bias[0, 7)/1'"));
  EXPECT_THAT(why([](ShardState* shard) {
                shard->region = {0, 0};
                shard->values = {};
              }),
              HasSubstr("are no elements of"));
  EXPECT_THAT(why([](ShardState* shard) {
                shard->region = {-1, 6};
              }),
              HasSubstr("[-1, 6) are no elements of"));
  EXPECT_THAT(why([](ShardState* shard) { shard->table.resize(257, 'x'); }),
              HasSubstr("257 bytes, above 256"));
  EXPECT_THAT(Text(WritePart(folder.path(), "p",
                             {ShardOf(model, "scale", 0, 1),
                              ShardOf(model, "scale", 0, 1)})
                       .status()),
              HasSubstr("the name is taken"));
  EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
}

// A header that fits its hash and says something else than WritePart() would.
TEST(PartFileTest, HeadersThatSayOtherThingsAreRefused) {
  const TempFolder folder;
  const std::string good = "version 1, hash 0000000000000001";
  const auto why = [&](const std::vector<TensorHeading>& tensors,
                       const TensorMetadata& metadata, int shards = 1) {
    std::string content = Must(MakeSafetensorsHeader("p", tensors, metadata));
    checkpoint::Part part;
    part.set_file("p");
    part.set_header_hash(BytesHash(content.data(), content.size()));
    for (const TensorHeading& tensor : tensors)
      content.append(tensor.bytes, '\0');
    part.set_bytes(static_cast<int64_t>(content.size()));
    part.set_shards(shards);
    Overwrite(folder.File("p"), content);
    return Text(PartFile::Open(folder.path(), part).status());
  };
  const TensorHeading values = {"t[0, 2)", "F32", {2}, 8};
  const TensorHeading slot = {"t[0, 2)/0", "F32", {2}, 8};
  EXPECT_EQ(why({values, slot}, {{"t[0, 2)", good}}), "");
  EXPECT_THAT(why({values}, {{"t[0, 2)", good}}, 2),
              HasSubstr("has 1 shards and metadata of 1, and the manifest "
                        "says 2"));
  EXPECT_THAT(why({values}, {{"t[0, 2)", good}, {"x", ""}}),
              HasSubstr("metadata of 2"));
  EXPECT_THAT(why({values}, {}), HasSubstr("does not give its version"));
  for (const char* const text :
       {"", "version 1", "version -1, hash 0000000000000001",
        "version 01, hash 0000000000000001", "version 1, hash 1",
        "version 1, hash 000000000000000A",
        "version 1, hash 0000000000000001 "}) {
    EXPECT_THAT(why({values}, {{"t[0, 2)", text}}),
                HasSubstr("does not give its version"))
        << text;
  }
  EXPECT_THAT(why({values}, {{"t[0, 2)",
                              "version 1152921504606846977, hash "
                              "0000000000000001"}}),
              HasSubstr("is above 2^60"));
  EXPECT_THAT(why({slot, values}, {{"t[0, 2)", good}}),
              AllOf(HasSubstr("'t[0, 2)/0'"), HasSubstr("is neither a shard")));
  EXPECT_THAT(why({values, {"t[0, 2)/1", "F32", {2}, 8}}, {{"t[0, 2)", good}}),
              HasSubstr("is neither a shard"));
  EXPECT_THAT(why({values, {"u[0, 2)/0", "F32", {2}, 8}}, {{"t[0, 2)", good}}),
              HasSubstr("is neither a shard"));
  EXPECT_THAT(
      why({{"t[0, 2)", "F32", {1, 2}, 8}}, {{"t[0, 2)", good}}),
      AllOf(HasSubstr("/p: offset "), HasSubstr("its shape is not [2]")));
  EXPECT_THAT(why({values, {"t[0, 2)/0", "F32", {1}, 4}}, {{"t[0, 2)", good}}),
              HasSubstr("its shape is not [2]"));
  EXPECT_THAT(why({{"t[0, 2)", "I32", {2}, 8}}, {{"t[0, 2)", good}}),
              HasSubstr("only F32"));
  EXPECT_EQ(why({{"t[0, 2)", "U8", {9}, 9}, {"t[0, 2)/0", "U8", {1}, 1}},
                {{"t[0, 2)", good}}),
            "")
      << "in a form that only the table's store knows";
  EXPECT_THAT(why({{"t[0, 2)", "U8", {3, 3}, 9}}, {{"t[0, 2)", good}}),
              HasSubstr("its shape is not [9]"));
  EXPECT_THAT(why({values, {"t[0, 2)/0", "U8", {8}, 8}}, {{"t[0, 2)", good}}),
              HasSubstr("its type is not that of the shard's values"));
  for (const char* const name :
       {"t", "t[0, 2", "t[0,2)", "t[00, 2)", "t[0, +2)", "t[0, 2) ", "t[, 2)",
        "t[0, 99999999999999999999)"}) {
    EXPECT_THAT(why({{name, "F32", {2}, 8}}, {{name, good}}),
                HasSubstr("is neither a shard"))
        << name;
  }
  for (const char* const name :
       {"t[-1, 1)", "t[2, 2)", "t[3, 1)", "t[1099511627775, 1099511627777)"}) {
    EXPECT_THAT(why({{name, "F32", {2}, 8}}, {{name, good}}),
                HasSubstr("are no elements of"))
        << name;
  }
}

TEST(PartFileTest, AHeaderThatIsLargerThanTheFileIsNotRead) {
  const TempFolder folder;
  folder.Write("p", "\xff\xff\xff\xff\xff\xff\xff\x7f{}");
  checkpoint::Part part;
  part.set_file("p");
  part.set_bytes(10);
  part.set_shards(1);
  EXPECT_THAT(Text(PartFile::Open(folder.path(), part).status()),
              AllOf(HasSubstr("/p: the header size"), HasSubstr("above 2")));
  folder.Write("p", "1234");
  part.set_bytes(4);
  EXPECT_THAT(Text(PartFile::Open(folder.path(), part).status()),
              HasSubstr("at least 8"));
}

// ---- Disks ------------------------------------------------------------------

TEST(PartFileTest, AFolderThatCannotBeMadeIsNamed) {
  const TempFolder folder;
  folder.Write("file", "");
  const absl::Status status =
      WritePart(folder.File("file/x"), "p", Shards(MakeModel(1), 4)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(status), HasSubstr("create " + folder.File("file/x")));
}

TEST(PartFileTest, APartThatCannotBeWrittenWholeLeavesNothing) {
  const TempFolder folder;
  const std::vector<ShardState> shards = Shards(MakeModel(1), 4);
  Must(WritePart(folder.path(), "old", shards));
  const std::string old = ReadWholeFile(folder.File("old"));
  absl::Status status;
  {
    const FileSizeLimit limit(100);
    status = WritePart(folder.path(), "old", shards).status();
  }
  EXPECT_THAT(Text(status), HasSubstr("write " + folder.File("old")));
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("old"));
  EXPECT_EQ(ReadWholeFile(folder.File("old")), old);
}

// The file is there, but nobody knows whether its name would be after a crash.
TEST(PartFileTest, AFolderThatCannotBeSyncedIsNamed) {
  const TempFolder folder;
  // To sync a folder is to read it, which is forbidden here; not for root.
  const std::string parts = folder.File("parts");
  std::filesystem::create_directory(parts);
  constexpr uid_t kNobody = 65534;
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(chown(parts.c_str(), kNobody, gid_t(-1)), 0);
    ASSERT_EQ(seteuid(kNobody), 0);
  }
  EXPECT_EQ(chmod(parts.c_str(), 0300), 0);
  const absl::Status status =
      WritePart(parts, "p", Shards(MakeModel(1), 4)).status();
  EXPECT_EQ(chmod(parts.c_str(), 0700), 0);
  if (root) {
    ASSERT_EQ(seteuid(0), 0);
  }
  EXPECT_THAT(Text(status), HasSubstr("open " + parts + ": Permission denied"));
}

TEST(CheckpointFolderTest, WhatCannotBeWrittenIsNoCheckpoint) {
  const TempFolder folder;
  const std::string root = folder.File("root");
  const Model model = MakeModel(1);
  const std::string partial = PartialFolder(root, kRun, 1);
  const checkpoint::Manifest manifest =
      WriteParts(partial, model, Shards(model, 4), 2);
  absl::StatusOr<std::string> done;
  {
    const FileSizeLimit limit(100);
    done = CompleteCheckpoint(root, kRun, 1, manifest, 3);
  }
  EXPECT_THAT(Text(done.status()), HasSubstr("manifest.json"));
  EXPECT_THAT(NamesIn(root), ElementsAre(".partial-0000000000abcdef-1"));
  std::vector<std::string> passed_over;
  EXPECT_TRUE(absl::IsNotFound(FindCheckpoint(root, &passed_over).status()));
  // There is room again.
  EXPECT_EQ(Must(CompleteCheckpoint(root, kRun, 1, manifest, 3)),
            root + "/step-00001200");
}

// ---- Whole checkpoints ------------------------------------------------------

TEST(StoredCheckpointTest, AnyCutReadsWhatWasWrittenInAnyOther) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const TempFolder folder;
    Rng rng(seed);
    const Model model = MakeModel(seed);
    Write(folder.path(), model, rng.Between(1, 31),
          static_cast<int>(rng.Between(1, 4)));
    const auto stored = Must(StoredCheckpoint::Open(folder.path()));
    EXPECT_TRUE(HasContentOf(*stored, model));
    for (const auto& [name, table] : model.tables) {
      const int64_t elements =
          static_cast<int64_t>(table.tensors.front().size());
      for (int i = 0; i < 10; ++i) {
        const int64_t begin = rng.Between(0, elements - 1);
        const int64_t end = rng.Between(begin + 1, elements);
        const ShardState expected = ShardOf(model, name, begin, end);
        ExpectEqual(Must(stored->Read(name, {begin, end}, FloatsForm())),
                    expected);
        EXPECT_EQ(Bits(Must(stored->ReadValues(name, {begin, end}))),
                  Bits(expected.values));
      }
    }
  }
}

// Their hash is that of the bytes in their order.
TEST(StoredCheckpointDeathTest, AFormReadsEachPieceInTheOrderOfItsBytes) {
  class Backward final : public TensorForm {
   public:
    bool IsFloats() const override { return true; }
    absl::StatusOr<Payload> Join(
        const Region& region, absl::Span<const Piece> pieces) const override {
      Payload whole = Payload::Allocate(region.DenseBytes());
      for (const size_t offset : {size_t{4}, size_t{0}}) {
        SL_RETURN_IF_ERROR(
            pieces[0].read(offset, {whole.MutableData() + offset, 4}));
      }
      return whole;
    }
  };
  const TempFolder folder;
  const Model model = MakeModel(1);
  Write(folder.path(), model);
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  const std::string name = model.tables.begin()->first;
  EXPECT_DEATH(stored->Read(name, {0, 2}, Backward()).IgnoreError(),
               "offset.*>= next_");
}

TEST(StoredCheckpointTest, KnowsItsManifestAndSize) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  Write(folder.path(), model);
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  EXPECT_EQ(stored->folder(), folder.path());
  EXPECT_EQ(stored->manifest().clock(), 1200);
  EXPECT_EQ(stored->sha256(), ManifestSha256(stored->manifest()));
  EXPECT_THAT(stored->sha256(), SizeIs(64));
  int64_t bytes = 0;
  for (const std::string& name : NamesIn(folder.path())) {
    if (name != kManifestFile)
      bytes += static_cast<int64_t>(fs::file_size(folder.File(name)));
  }
  EXPECT_EQ(stored->bytes(), bytes);
}

TEST(StoredCheckpointTest, OfSeveralVersionsTheLargestCounts) {
  const TempFolder folder;
  Model model = MakeModel(1);
  std::vector<ShardState> shards = Shards(model, 4);
  for (ShardState& shard : shards) {
    if (shard.table == "net.0.bias")
      shard.version = shard.region.begin() == 0 ? 9 : 7;
  }
  Must(WriteManifest(folder.path(),
                     WriteParts(folder.path(), model, shards, 1)));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  EXPECT_EQ(Must(stored->Read("net.0.bias", {0, 7}, FloatsForm())).version, 9u);
  EXPECT_EQ(Must(stored->Read("net.0.bias", {5, 7}, FloatsForm())).version, 7u);
}

TEST(StoredCheckpointTest, OfSeveralRunningSizesTheElementsCount) {
  const TempFolder folder;
  Model model = MakeModel(1);
  std::vector<ShardState> shards = Shards(model, 4);
  for (ShardState& shard : shards) {
    if (shard.table == "net.0.bias")
      shard.running_rms = RunningRms(shard.region.begin() == 0 ? 1 : 3,
                                     shard.region.begin() == 0 ? 200 : 150);
  }
  Must(WriteManifest(folder.path(),
                     WriteParts(folder.path(), model, shards, 1)));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  EXPECT_EQ(Must(stored->Read("net.0.bias", {5, 7}, FloatsForm())).running_rms,
            RunningRms(3, 150));
  const RunningRms both =
      Must(stored->Read("net.0.bias", {0, 7}, FloatsForm())).running_rms;
  EXPECT_DOUBLE_EQ(both.mean(), std::sqrt((4 * 1 + 3 * 9) / 7.0));
  EXPECT_EQ(both.count(), 150u);
}

TEST(StoredCheckpointTest, TurnsAreReadHoweverTheyWereSplit) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  std::vector<ShardState> shards = Shards(model, 4);
  for (ShardState& shard : shards) GiveTurns(&shard);
  Must(WriteManifest(folder.path(),
                     WriteParts(folder.path(), model, shards, 2)));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  for (const Region& region :
       {Region(0, 4), Region(1, 3), Region(0, 7), Region(2, 6)}) {
    ShardState expected =
        ShardOf(model, "net.0.bias", region.begin(), region.end());
    GiveTurns(&expected);
    const ShardState read =
        Must(stored->Read("net.0.bias", region, FloatsForm()));
    ExpectEqual(read, expected);
    ExpectSameTurns(read, expected);
  }
  EXPECT_EQ(Bits(Must(stored->ReadValues("net.0.bias", {0, 7}))),
            Bits(ShardOf(model, "net.0.bias", 0, 7).values));
}

// A gradient can be discarded in one part of a shard that was split in two.
TEST(StoredCheckpointTest, TurnsThatDoNotFitTogetherAreRefused) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  std::vector<ShardState> shards = Shards(model, 4);
  for (ShardState& shard : shards)
    GiveTurns(&shard, shard.region.begin() == 4 ? 10 : 9);
  Must(WriteManifest(folder.path(),
                     WriteParts(folder.path(), model, shards, 1)));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  EXPECT_TRUE(stored->Read("net.0.bias", {4, 7}, FloatsForm()).ok());
  EXPECT_THAT(Text(stored->Read("net.0.bias", {0, 7}, FloatsForm()).status()),
              AllOf(HasSubstr("net.0.bias[0, 7)"),
                    HasSubstr("have other turns than each other")));
}

TEST(StoredCheckpointTest, OfSeveralVersionsInTurnsTheLargestCounts) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  std::vector<ShardState> shards = Shards(model, 4);
  for (ShardState& shard : shards) {
    GiveTurns(&shard);
    if (shard.region.begin() != 4) continue;
    shard.turns->turns.mutable_waiting(0)->set_base(5);
    shard.turns->turns.mutable_waiting(0)->set_rms(1);
    shard.turns->turns.mutable_kept(1)->set_version(8);
  }
  Must(WriteManifest(folder.path(),
                     WriteParts(folder.path(), model, shards, 1)));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  const wire::Turns turns =
      Must(stored->Read("net.0.bias", {0, 7}, FloatsForm())).turns->turns;
  EXPECT_EQ(turns.waiting(0).base(), 7u);
  EXPECT_DOUBLE_EQ(turns.waiting(0).rms(), std::sqrt((4 * 9 + 3 * 1) / 7.0));
  EXPECT_EQ(turns.kept(0).version(), 4u);
  EXPECT_EQ(turns.kept(1).version(), 8u);
}

TEST(StoredCheckpointTest, WhatIsNotThereIsNamed) {
  const TempFolder folder;
  Write(folder.path(), MakeModel(1));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  EXPECT_THAT(Text(stored->Read("net.1", {0, 1}, FloatsForm()).status()),
              HasSubstr("has no table net.1"));
  EXPECT_THAT(Text(stored->Read("net.0.bias", {3, 8}, FloatsForm()).status()),
              HasSubstr("net.0.bias[3, 8); the table has 7 elements"));
  for (const Region& none : {Region(-1, 3), Region(3, 3), Region(4, 3)}) {
    EXPECT_TRUE(absl::IsNotFound(
        stored->Read("net.0.bias", none, FloatsForm()).status()));
  }
}

TEST(StoredCheckpointTest, IsReadAlthoughOthersRemoveIt) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  const std::string path = Write(folder.File("c"), model);
  const auto stored = Must(StoredCheckpoint::Open(path));
  fs::remove_all(path);
  EXPECT_TRUE(HasContentOf(*stored, model));
}

TEST(StoredCheckpointTest, EveryFlippedBitIsFound) {
  const TempFolder folder;
  Model model = MakeModel(3);
  // Small, for there is a check for each bit.
  model.manifest.mutable_table()->RemoveLast();
  model.tables.erase("a \"b\"[0, 1)/0 \xc3\xa4");
  WriteWithPrograms(folder.path(), model);
  const std::string sha256 =
      Must(StoredCheckpoint::Open(folder.path()))->sha256();
  int found = 0;
  for (const std::string& name : NamesIn(folder.path())) {
    const std::string path = folder.File(name);
    const std::string content = ReadWholeFile(path);
    for (size_t bit = 0; bit < content.size() * 8; ++bit) {
      std::string changed = content;
      changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << (bit % 8)));
      Overwrite(path, changed);
      const auto stored = StoredCheckpoint::Open(folder.path());
      if (!stored.ok()) {
        ++found;
        ASSERT_THAT(Text(stored.status()), HasSubstr(folder.path()));
        continue;
      }
      // It is written in another way and says the same.
      ASSERT_EQ((*stored)->sha256(), sha256) << name << " bit " << bit;
      ASSERT_TRUE(HasContentOf(**stored, model)) << name << " bit " << bit;
      ASSERT_EQ(name, kManifestFile) << "bit " << bit;
    }
    Overwrite(path, content);
  }
  EXPECT_GT(found, 10000);
  EXPECT_TRUE(OpenError(folder.path()).ok());
}

TEST(StoredCheckpointTest, EveryTornFileIsFound) {
  const TempFolder folder;
  WriteWithPrograms(folder.path(), MakeModel(3));
  for (const std::string& name : NamesIn(folder.path())) {
    const std::string path = folder.File(name);
    const std::string content = ReadWholeFile(path);
    // The last byte of the manifest ends its line.
    const size_t needed = content.size() - (name == kManifestFile ? 1 : 0);
    for (size_t size = 0; size < needed; ++size) {
      Overwrite(path, content.substr(0, size));
      const absl::Status status = OpenError(folder.path());
      ASSERT_TRUE(absl::IsDataLoss(status)) << name << " " << size << status;
      ASSERT_THAT(Text(status), HasSubstr(path));
    }
    Overwrite(path, content + "x");
    EXPECT_TRUE(absl::IsDataLoss(OpenError(folder.path()))) << name;
    // Blocks that were never written.
    Overwrite(path, std::string(content.size(), '\0'));
    EXPECT_TRUE(absl::IsDataLoss(OpenError(folder.path()))) << name;
    fs::remove(path);
    const absl::Status missing = OpenError(folder.path());
    EXPECT_EQ(missing.code(), name == kManifestFile
                                  ? absl::StatusCode::kNotFound
                                  : absl::StatusCode::kDataLoss);
    EXPECT_THAT(Text(missing), HasSubstr(path));
    fs::create_directory(path);
    EXPECT_FALSE(OpenError(folder.path()).ok());
    fs::remove(path);
    Overwrite(path, content);
  }
  EXPECT_TRUE(OpenError(folder.path()).ok());
}

TEST(KeptFileTest, AWorkerFindsWhatItsProgramKept) {
  const TempFolder folder;
  WriteWithPrograms(folder.path(), MakeModel(3));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  const std::string sha256 = stored->sha256();
  EXPECT_EQ(stored->bytes(), stored->manifest().part(0).bytes() + 21);
  EXPECT_EQ(Must(FindKept(folder.path(), sha256, 0)).program,
            "what a program keeps");
  EXPECT_EQ(Must(FindKept(folder.path(), sha256, 3)).program, "x");
  EXPECT_EQ(Must(FindKept(folder.path(), sha256, 1)).program, std::nullopt);
  EXPECT_THAT(Text(FindKept(folder.path(), "0", 0).status()),
              AllOf(HasSubstr("has the sha256"),
                    HasSubstr("that of the servers has 0")));
  FlipLastBit(folder.File("worker-3.state"));
  EXPECT_THAT(Text(FindKept(folder.path(), sha256, 3).status()),
              AllOf(StartsWith("worker 3 cannot read"),
                    HasSubstr("worker-3.state: bytes [0, 1) have the hash"),
                    HasSubstr("seen under the same name")));
  EXPECT_THAT(Text(FindKept(folder.File("elsewhere"), sha256, 0).status()),
              AllOf(HasSubstr("elsewhere/manifest.json"),
                    HasSubstr("seen under the same name")));
}

TEST(KeptFileTest, AWorkerFindsItsResiduals) {
  const TempFolder folder;
  const Model model = MakeModel(3);
  checkpoint::Manifest manifest =
      WriteParts(folder.path(), model, Shards(model, 16), 1);
  ShardState residual = Shards(model, 1 << 20)[0];
  residual.slots.clear();
  *manifest.add_kept() = Must(WriteKept(
      folder.path(), 0, {.program = std::nullopt, .residuals = {residual}}));
  *manifest.add_kept() = Must(WriteKept(
      folder.path(), 1, {.program = "a program", .residuals = {residual}}));
  Must(WriteManifest(folder.path(), manifest));
  const auto stored = Must(StoredCheckpoint::Open(folder.path()));
  EXPECT_EQ(stored->bytes(), stored->manifest().part(0).bytes() + 9 +
                                 manifest.kept(0).residuals().bytes() +
                                 manifest.kept(1).residuals().bytes());
  for (const int rank : {0, 1}) {
    const WorkerState found =
        Must(FindKept(folder.path(), stored->sha256(), rank));
    EXPECT_EQ(found.program.value_or(""), rank == 0 ? "" : "a program");
    ASSERT_THAT(found.residuals, SizeIs(1));
    EXPECT_EQ(found.residuals[0].table, residual.table);
    EXPECT_EQ(found.residuals[0].region, residual.region);
    EXPECT_EQ(std::memcmp(found.residuals[0].values.data(),
                          residual.values.data(), residual.values.size()),
              0);
  }
  FlipLastBit(folder.File("worker-1.residuals.safetensors"));
  EXPECT_TRUE(FindKept(folder.path(), stored->sha256(), 0).ok());
  EXPECT_THAT(Text(FindKept(folder.path(), stored->sha256(), 1).status()),
              AllOf(StartsWith("worker 1 cannot read"),
                    HasSubstr("worker-1.residuals.safetensors: bytes [")));
  EXPECT_THAT(Text(OpenError(folder.path())),
              HasSubstr("worker-1.residuals.safetensors: bytes ["));
  fs::remove(folder.File("worker-1.residuals.safetensors"));
  EXPECT_THAT(Text(OpenError(folder.path())),
              HasSubstr("worker-1.residuals.safetensors"));
}

TEST(CheckpointFolderTest, WhatAProgramKeepsHasToBeThere) {
  const TempFolder folder;
  const std::string partial = PartialFolder(folder.path(), kRun, 1);
  const Model model = MakeModel(1);
  checkpoint::Manifest manifest =
      WriteParts(partial, model, Shards(model, 4), 2);
  *manifest.add_kept() = Must(WriteKept(partial, 1, {.program = "kept"}));
  Overwrite(partial + "/worker-1.state", "kep");
  EXPECT_THAT(
      Text(CompleteCheckpoint(folder.path(), kRun, 1, manifest, 3).status()),
      HasSubstr("worker-1.state has 3 bytes; 4 were written"));
  fs::remove(partial + "/worker-1.state");
  EXPECT_THAT(
      Text(CompleteCheckpoint(folder.path(), kRun, 1, manifest, 3).status()),
      HasSubstr("worker-1.state"));
}

TEST(StoredCheckpointTest, DamageIsNamedWithItsPlace) {
  const TempFolder folder;
  Write(folder.path(), MakeModel(3), 16, 1);
  const std::string path = folder.File("server-0-thread-0.safetensors");
  FlipLastBit(path);
  EXPECT_THAT(
      Text(OpenError(folder.path())),
      AllOf(HasSubstr(path + ": bytes ["), HasSubstr("shard scale[0, 1)"),
            HasSubstr("the file is damaged")));
}

TEST(StoredCheckpointTest, APartOfAnotherCheckpointIsRefused) {
  const TempFolder folder;
  const std::string a = Write(folder.File("a"), MakeModel(1));
  const std::string b = Write(folder.File("b"), MakeModel(2));
  const std::string name = "/server-1-thread-0.safetensors";
  fs::copy_file(b + name, a + name, fs::copy_options::overwrite_existing);
  EXPECT_THAT(Text(OpenError(a)), HasSubstr("of another checkpoint"));
}

// Shards that are fine by themselves and do not make the tables.
TEST(StoredCheckpointTest, TheTablesAreThereWholeAndOnce) {
  const Model model = MakeModel(1);
  const auto why =
      [&](const std::function<void(std::vector<ShardState>*)>& change) {
        const TempFolder folder;
        std::vector<ShardState> shards = {
            ShardOf(model, "a \"b\"[0, 1)/0 \xc3\xa4", 0, 2),
            ShardOf(model, "net.0.bias", 0, 4),
            ShardOf(model, "net.0.bias", 4, 7),
            ShardOf(model, "net.0.weight", 0, 30),
            ShardOf(model, "scale", 0, 1)};
        change(&shards);
        Must(WriteManifest(folder.path(),
                           WriteParts(folder.path(), model, shards, 2)));
        return Text(OpenError(folder.path()));
      };
  EXPECT_EQ(why([](auto*) {}), "");
  EXPECT_THAT(why([](auto* shards) { shards->erase(shards->begin() + 1); }),
              HasSubstr("no part has net.0.bias[0, 4)"));
  EXPECT_THAT(why([](auto* shards) { shards->erase(shards->begin() + 2); }),
              HasSubstr("no part has net.0.bias[4, 7)"));
  EXPECT_THAT(why([&](auto* shards) {
                (*shards)[1] = ShardOf(model, "net.0.bias", 0, 3);
              }),
              HasSubstr("no part has net.0.bias[3, 4)"));
  EXPECT_THAT(why([](auto* shards) { shards->pop_back(); }),
              HasSubstr("no part has scale[0, 1)"));
  EXPECT_THAT(why([&](auto* shards) {
                (*shards)[1] = ShardOf(model, "net.0.bias", 0, 5);
              }),
              AllOf(HasSubstr("overlaps with"), HasSubstr("net.0.bias[0, 5)"),
                    HasSubstr("net.0.bias[4, 7)")));
  EXPECT_THAT(why([&](auto* shards) {
                shards->push_back(ShardOf(model, "net.0.bias", 2, 3));
              }),
              HasSubstr("net.0.bias[2, 3) overlaps with net.0.bias[0, 4)"));
  EXPECT_THAT(why([&](auto* shards) {
                shards->insert(shards->begin() + 2,
                               ShardOf(model, "net.0.bias", 0, 4));
              }),
              HasSubstr("net.0.bias[0, 4) overlaps with net.0.bias[0, 4)"));
  EXPECT_THAT(why([](auto* shards) {
                shards->back() = {.table = "scale",
                                  .region = {0, 2},
                                  .values = Floats({1, 2})};
              }),
              HasSubstr("outside of the table, which has 1 elements"));
  EXPECT_THAT(why([](auto* shards) { shards->back().table = "other"; }),
              HasSubstr("other[0, 1) is of a table that the manifest does not "
                        "have"));
  EXPECT_THAT(why([](auto* shards) { (*shards)[2].slots.pop_back(); }),
              HasSubstr("has 1 optimizer slots; 2 are required"));
  EXPECT_THAT(
      why([](auto* shards) { shards->back().slots.push_back(Floats({1})); }),
      HasSubstr("has 1 optimizer slots; 0 are required"));
}

// ---- Manifests --------------------------------------------------------------

checkpoint::Manifest ManifestOf(const Model& model) {
  checkpoint::Manifest manifest = model.manifest;
  checkpoint::Part& part = *manifest.add_part();
  part.set_file("p");
  part.set_bytes(1000);
  part.set_shards(4);
  return manifest;
}

TEST(ManifestTest, IsReadBackAsItWas) {
  const TempFolder folder;
  checkpoint::Manifest manifest = ManifestOf(MakeModel(1));
  manifest.set_job("job \"\xc3\xa4\"\n");
  manifest.set_seconds(0.1 + 0.2);
  manifest.set_clock(kClockMax);
  manifest.mutable_part(0)->set_header_hash(~uint64_t{0});
  checkpoint::WorkerClock& worker = *manifest.add_worker();
  worker.set_rank(7);
  worker.set_clock(kClockMax);
  Must(WriteManifest(folder.path(), manifest));
  const checkpoint::Manifest read = Must(ReadManifest(folder.path()));
  EXPECT_TRUE(
      google::protobuf::util::MessageDifferencer::Equals(read, manifest));
  EXPECT_EQ(ManifestSha256(read), ManifestSha256(manifest));
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre(kManifestFile));
  EXPECT_THAT(ReadWholeFile(folder.File(kManifestFile)),
              AllOf(HasSubstr("\"steps_per_epoch\": \"100\""),
                    HasSubstr("\"learning_rate\": 0.1"),
                    HasSubstr("\"sha256\": \"" + ManifestSha256(manifest))));
}

TEST(ManifestTest, WhatIsOutOfItsBoundsIsNeitherWrittenNorRead) {
  using Change = std::function<void(checkpoint::Manifest*)>;
  const auto part_file = [](const std::string& name) -> Change {
    return [=](auto* m) { m->mutable_part(0)->set_file(name); };
  };
  const struct {
    Change change;
    const char* words;
  } cases[] = {
      {[](auto* m) { m->set_format(2); },
       "format is 2, and this version reads"},
      {[](auto* m) { m->set_clock(-1); }, "clock is -1; 0 to"},
      {[](auto* m) { m->set_clock(kClockMax + 1); },
       "clock is 1152921504606846977"},
      {[](auto* m) { m->set_workers(-1); }, "workers is -1; 0 to 4096"},
      {[](auto* m) { m->set_workers(4097); }, "workers is 4097"},
      {[](auto* m) { m->set_steps_total(-1); }, "steps_total is -1"},
      {[](auto* m) { m->set_steps_per_epoch(0); },
       "steps_per_epoch is 0; 1 to"},
      {[](auto* m) { m->set_sequence(-1); }, "sequence is -1"},
      {[](auto* m) { m->set_seconds(-1); }, "seconds is -1"},
      {[](auto* m) { m->set_seconds(std::nan("")); }, "seconds is nan"},
      {[](auto* m) { m->add_worker()->set_rank(-1); }, "worker rank -1"},
      {[](auto* m) { m->add_worker()->set_rank(4096); }, "worker rank 4096"},
      {[](auto* m) { m->add_worker()->set_clock(1199); },
       "worker 0 has clock 1199; 1200, the smallest"},
      {[](auto* m) {
         for (int i = 0; i < 2; ++i) m->add_worker()->set_clock(1200);
       },
       "worker rank 0 is there twice"},
      {[](auto* m) { m->add_kept()->set_bytes(1); },
       "state '' has 1 bytes; 0 to 0 are allowed"},
      {[](auto* m) { m->add_kept()->mutable_residuals(); },
       "part '': the name of a file in the folder, of 1 to 255 bytes"},
      {[](auto* m) {
         checkpoint::Kept& kept = *m->add_kept();
         kept.set_file("a");
         *kept.mutable_residuals() = m->part(0);
         kept.mutable_residuals()->set_file("a");
       },
       "state 'a': the name is taken"},
      {[](auto* m) { m->add_kept()->set_file("a/b"); },
       "state 'a/b': the name"},
      {[](auto* m) { m->add_kept()->set_file("manifest.json"); },
       "state 'manifest.json': the name is taken"},
      {[](auto* m) { m->add_kept()->set_file(m->part(0).file()); },
       "the name is taken"},
      {[](auto* m) {
         m->add_kept()->set_file("a");
         m->add_kept()->set_file("b");
       },
       "rank 0 keeps a state twice"},
      {[](auto* m) {
         m->add_kept()->set_file("a");
         m->mutable_kept(0)->set_rank(4096);
       },
       "state 'a' is of rank 4096, outside [0, 4096)"},
      {[](auto* m) {
         m->add_kept()->set_file("a");
         m->mutable_kept(0)->set_bytes((1 << 30) + 1);
       },
       "state 'a' has 1073741825 bytes; 0 to 1073741824 are allowed"},
      {[](auto* m) { m->clear_table(); }, "there are 0 tables"},
      {[](auto* m) { m->mutable_table(1)->set_name("net.0.weight"); },
       "table 'net.0.weight' is there twice"},
      {[](auto* m) { m->mutable_table(0)->set_name(std::string(257, 'x')); },
       "a name of 257 bytes; at most 256"},
      {[](auto* m) { m->mutable_table(0)->add_shape(0); }, "shape [6, 5, 0]"},
      {[](auto* m) { m->mutable_table(0)->add_shape(-30); }, "[6, 5, -30]"},
      {[](auto* m) { m->mutable_table(0)->add_shape(int64_t{1} << 38); },
       "at most 1099511627776 elements"},
      {[](auto* m) { m->mutable_table(0)->add_shape(int64_t{1} << 62); },
       "at most 1099511627776 elements"},
      {[](auto* m) {
         for (int i = 0; i < 17; ++i) m->mutable_table(2)->add_shape(1);
       },
       "has 17 extents; at most 16"},
      {[](auto* m) { m->mutable_table(0)->mutable_optimizer()->Clear(); },
       "table 'net.0.weight': "},
      {[](auto* m) {
         m->mutable_table(0)
             ->mutable_optimizer()
             ->mutable_momentum()
             ->set_momentum(2);
       },
       "momentum"},
      {[](auto* m) { m->clear_part(); }, "there are no parts"},
      {[](auto* m) { *m->add_part() = m->part(0); }, "part 'p': the name is"},
      {part_file(""), "part '': the name of a file"},
      {part_file("."), "part '.': the name of a file"},
      {part_file(".."), "part '..': the name of a file"},
      {part_file("../p"), "part '../p': the name of a file"},
      {part_file("/etc/passwd"), "the name of a file"},
      {part_file(std::string("p\0q", 3)), "the name of a file"},
      {part_file(std::string(256, 'x')), "of 1 to 255 bytes"},
      {part_file(kManifestFile), "part 'manifest.json': the name is taken"},
      {[](auto* m) { m->mutable_part(0)->set_shards(0); }, "has 0 shards"},
      {[](auto* m) { m->mutable_part(0)->set_shards(-1); }, "has -1 shards"},
      {[](auto* m) { m->mutable_part(0)->set_bytes(15); },
       "has 15 bytes for 4 shards"},
      {[](auto* m) { m->mutable_part(0)->set_bytes(-1); }, "has -1 bytes"},
  };
  for (const auto& [change, words] : cases) {
    const TempFolder folder;
    checkpoint::Manifest manifest = ManifestOf(MakeModel(1));
    EXPECT_EQ(WhyNoManifest(manifest), "");
    change(&manifest);
    EXPECT_THAT(WhyNoManifest(manifest), HasSubstr(words));
    const absl::Status written = WriteManifest(folder.path(), manifest);
    EXPECT_TRUE(absl::IsInvalidArgument(written)) << words;
    EXPECT_THAT(Text(written),
                AllOf(HasSubstr(kManifestFile), HasSubstr(words)));
    EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
  }
}

TEST(ManifestTest, TextThatIsNotUtf8IsRefused) {
  const TempFolder folder;
  checkpoint::Manifest manifest = ManifestOf(MakeModel(1));
  manifest.mutable_table(0)->set_name("\xff");
  EXPECT_FALSE(WriteManifest(folder.path(), manifest).ok());
  EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
}

TEST(ManifestTest, WhatIsWrongIsSaid) {
  const TempFolder folder;
  Must(WriteManifest(folder.path(), ManifestOf(MakeModel(1))));
  const std::string path = folder.File(kManifestFile);
  const std::string text = ReadWholeFile(path);
  const auto why = [&](const std::string& content) {
    Overwrite(path, content);
    const absl::Status status = ReadManifest(folder.path()).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(Text(status), StartsWith(path));
    return Text(status);
  };
  EXPECT_THAT(why(""), HasSubstr("not a JSON map"));
  EXPECT_THAT(why("[]"), HasSubstr("not a JSON map"));
  EXPECT_THAT(why("{}"), HasSubstr("has no sha256"));
  EXPECT_THAT(why(std::string(100000, '[')), HasSubstr("not a JSON map"));
  EXPECT_THAT(why("{\"sha256\": \"\", \"x\": " + std::string(100000, '[') +
                  std::string(100000, ']') + "}"),
              HasSubstr("damaged"));
  EXPECT_THAT(why("{\"format\": 2}"),
              HasSubstr("format is 2, and this version reads 1"));
  std::string edited = text;
  edited.replace(edited.find("\"1200\""), 6, "\"1300\"");
  EXPECT_THAT(why(edited), HasSubstr("is damaged or has been edited"));
  edited = text;
  edited.replace(edited.find("\"clock\""), 7, "\"clack\"");
  EXPECT_THAT(why(edited), HasSubstr("is damaged or has been edited"));
  std::ofstream(path).close();
  fs::resize_file(path, (64 << 20) + 1);
  EXPECT_THAT(Text(ReadManifest(folder.path()).status()),
              HasSubstr("at most 67108864 are read"));
}

// ---- Folders ----------------------------------------------------------------

TEST(CheckpointFolderTest, TheRootIsOfTheConfigOrOfTheRun) {
  config::ClusterConfig config;
  EXPECT_EQ(CheckpointRoot(config, ""), "");
  EXPECT_EQ(CheckpointRoot(config, "runs/a"), "runs/a/checkpoints");
  config.mutable_checkpoint()->set_folder("/shared");
  EXPECT_EQ(CheckpointRoot(config, ""), "/shared");
  EXPECT_EQ(CheckpointRoot(config, "runs/a"), "/shared");
}

TEST(CheckpointFolderTest, GetsItsNameWhenItIsWhole) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  EXPECT_EQ(Must(Complete(folder.path(), model, 1)),
            folder.File("step-00001200"));
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("step-00001200"));
  const auto stored =
      Must(StoredCheckpoint::Open(folder.File("step-00001200")));
  EXPECT_TRUE(HasContentOf(*stored, model));
  EXPECT_EQ(stored->manifest().sequence(), 1);
}

TEST(CheckpointFolderTest, APartThatIsNotThereIsNamed) {
  const TempFolder folder;
  const Model model = MakeModel(1);
  const std::string partial = PartialFolder(folder.path(), kRun, 1);
  const checkpoint::Manifest manifest =
      WriteParts(partial, model, Shards(model, 4), 2);
  const std::string part = partial + "/server-1-thread-0.safetensors";
  const std::string content = ReadWholeFile(part);
  fs::remove(part);
  EXPECT_THAT(
      Text(CompleteCheckpoint(folder.path(), kRun, 1, manifest, 3).status()),
      AllOf(HasSubstr(part), HasSubstr("on several hosts")));
  Overwrite(part, content.substr(1));
  EXPECT_THAT(
      Text(CompleteCheckpoint(folder.path(), kRun, 1, manifest, 3).status()),
      HasSubstr("were written"));
  EXPECT_THAT(NamesIn(folder.path()), SizeIs(1));
  RemovePartial(folder.path(), kRun, 1);
  EXPECT_THAT(NamesIn(folder.path()), IsEmpty());
  RemovePartial(folder.path(), kRun, 1);  // It need not be there.
}

TEST(CheckpointFolderTest, AnotherOneOfTheSameStepIsReplaced) {
  const TempFolder folder;
  const Model other = MakeModel(2);
  Must(Complete(folder.path(), MakeModel(1), 1));
  folder.Write("step-00001200/more", "of an older one");
  Must(Complete(folder.path(), other, 2));
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("step-00001200"));
  EXPECT_THAT(NamesIn(folder.File("step-00001200")), SizeIs(3));
  EXPECT_TRUE(HasContentOf(
      *Must(StoredCheckpoint::Open(folder.File("step-00001200"))), other));
}

TEST(CheckpointFolderTest, TheNewestAreKept) {
  const TempFolder folder;
  int cut = 0;
  for (const int64_t clock : {100, 200, 300, 400})
    Must(Complete(folder.path(), MakeModel(1, clock), ++cut, 2));
  EXPECT_THAT(NamesIn(folder.path()),
              UnorderedElementsAre("step-00000300", "step-00000400"));
  // A run that began anew: what it has written is newer than larger steps.
  Must(Complete(folder.path(), MakeModel(1, 50), 1, 2, kRun + 1));
  EXPECT_THAT(NamesIn(folder.path()),
              UnorderedElementsAre("step-00000050", "step-00000400"));
  Must(Complete(folder.path(), MakeModel(1, 60), 2, 1, kRun + 1));
  EXPECT_THAT(NamesIn(folder.path()), ElementsAre("step-00000060"));
}

// As of a coordinator that has been replaced meanwhile: at each place at which
// it asks, another one may have begun, and completed what is newer.
TEST(CheckpointFolderTest, WhoMayNotChangeItAnyMoreLeavesTheNewer) {
  const Model late = MakeModel(1, 200);
  for (int asked_of = 1;; ++asked_of) {
    SCOPED_TRACE(asked_of);
    const TempFolder folder;
    const std::string root = folder.path();
    Must(Complete(root, MakeModel(1, 100), 1));
    int asked = 0;
    const auto may_change = [&] {
      if (++asked < asked_of) return true;
      if (asked == asked_of)
        Must(Complete(root, MakeModel(1, 300), 3, 100, kRun + 1));
      return false;
    };
    const absl::StatusOr<std::string> done = CompleteCheckpoint(
        root, kRun, 2,
        WriteParts(PartialFolder(root, kRun, 2), late, Shards(late, 4), 2),
        /*keep=*/1, nullptr, may_change);
    if (asked < asked_of) break;  // It has come to its end.
    EXPECT_TRUE(fs::exists(folder.File("step-00000300")));
    EXPECT_TRUE(fs::exists(folder.File("step-00000100")));
    EXPECT_EQ(fs::exists(folder.File("step-00000200")), done.ok());
    if (!done.ok()) {
      EXPECT_EQ(done.status().code(), absl::StatusCode::kFailedPrecondition);
      EXPECT_THAT(Text(done.status()), HasSubstr("another coordinator"));
    }
  }
}

// Nor does it, if it does not know yet.
TEST(CheckpointFolderTest, WhatIsNewerIsNotRemoved) {
  const TempFolder folder;
  const std::string root = folder.path();
  const Model late = MakeModel(1, 200);
  int asked = 0;
  const auto may_change = [&] {
    // In a run of its own, since one removes what earlier cuts have left.
    if (++asked == 2) Must(Complete(root, MakeModel(1, 300), 3, 100, kRun + 1));
    return true;
  };
  Must(CompleteCheckpoint(
      root, kRun, 2,
      WriteParts(PartialFolder(root, kRun, 2), late, Shards(late, 4), 2),
      /*keep=*/1, nullptr, may_change));
  EXPECT_TRUE(fs::exists(folder.File("step-00000300")));
}

TEST(CheckpointFolderTest, ADamagedOneIsNoneOfThoseThatAreKept) {
  const TempFolder folder;
  const std::string root = folder.path();
  Must(Complete(root, MakeModel(1, 100), 1, 2));
  const std::string damaged = Must(Complete(root, MakeModel(1, 200), 2, 2));
  for (const std::string& name : NamesIn(damaged)) {
    if (name != kManifestFile)
      fs::resize_file(absl::StrCat(damaged, "/", name), 1);
  }
  Must(Complete(root, MakeModel(1, 300), 3, 2));
  EXPECT_TRUE(fs::exists(folder.File("step-00000100")));
  EXPECT_THAT(CheckpointsIn(root, 0), SizeIs(2));
  // Behind so many that are whole it goes as any other.
  Must(Complete(root, MakeModel(1, 400), 4, 2));
  EXPECT_THAT(NamesIn(root),
              UnorderedElementsAre("step-00000300", "step-00000400"));
}

TEST(CheckpointFolderTest, OnlyCheckpointsAndOwnRemainsAreRemoved) {
  const TempFolder folder;
  const std::string root = folder.path();
  Must(Complete(root, MakeModel(1, 100), 1));
  for (const char* const name :
       {"step-", "step-1x", "step-00000007", "stepp-00000001", "data",
        ".partial-0000000000abcdee-1"}) {
    fs::create_directory(folder.File(name));
  }
  folder.Write("step-00000008", "a file");
  fs::create_directory_symlink(folder.File("data"),
                               folder.File("step-00000009"));
  for (const int32_t cut : {1, 2, 4})
    fs::create_directories(PartialFolder(root, kRun, cut));
  Must(Complete(root, MakeModel(1, 300), 3, 1));
  EXPECT_THAT(NamesIn(root),
              UnorderedElementsAre("step-", "step-1x", "step-00000007",
                                   "stepp-00000001", "data", "step-00000008",
                                   "step-00000009", "step-00000300",
                                   ".partial-0000000000abcdee-1",
                                   ".partial-0000000000abcdef-4"));
}

TEST(CheckpointFolderTest, ThoseOfAnotherLineageAreLeftAlone) {
  const TempFolder folder;
  const std::string root = folder.path();
  const Model model = MakeModel(1, 100);
  Must(Complete(root, model, 1));
  const auto complete = [&](int32_t cut, int64_t clock) {
    const Model other = MakeModel(2, clock);
    checkpoint::Manifest manifest = WriteParts(
        PartialFolder(root, kRun + 1, cut), other, Shards(other, 4), 2);
    manifest.set_lineage(7);
    return CompleteCheckpoint(root, kRun + 1, cut, manifest, 1).status();
  };
  EXPECT_THAT(Text(complete(1, 100)),
              AllOf(HasSubstr("step-00000100 is a checkpoint of another run"),
                    HasSubstr("checkpoint { folder")));
  RemovePartial(root, kRun + 1, 1);
  EXPECT_TRUE(complete(2, 200).ok());
  EXPECT_TRUE(complete(3, 300).ok());
  EXPECT_THAT(NamesIn(root),
              UnorderedElementsAre("step-00000100", "step-00000300"));
  EXPECT_TRUE(HasContentOf(
      *Must(StoredCheckpoint::Open(folder.File("step-00000100"))), model));
}

TEST(FindCheckpointTest, TakesOneItselfARootOrARun) {
  const TempFolder folder;
  const std::string root = folder.File("run/checkpoints");
  const std::string older = Must(Complete(root, MakeModel(1, 100), 1));
  const std::string newer = Must(Complete(root, MakeModel(1, 200), 2));
  std::vector<std::string> passed_over;
  EXPECT_EQ(Must(FindCheckpoint(older, &passed_over)), older);
  EXPECT_EQ(Must(FindCheckpoint(older + "/", &passed_over)), older);
  EXPECT_EQ(Must(FindCheckpoint(root, &passed_over)), newer);
  EXPECT_EQ(Must(FindCheckpoint(folder.File("run"), &passed_over)), newer);
  EXPECT_EQ(Must(FindCheckpoint(folder.File("run//"), &passed_over)), newer);
  EXPECT_THAT(passed_over, IsEmpty());
}

TEST(FindCheckpointTest, TheOneThatWasCompletedLastIsTheNewest) {
  const TempFolder folder;
  Must(Complete(folder.path(), MakeModel(1, 900), 1));
  const std::string last =
      Must(Complete(folder.path(), MakeModel(1, 100), 1, 100, kRun + 1));
  std::vector<std::string> passed_over;
  EXPECT_EQ(Must(FindCheckpoint(folder.path(), &passed_over)), last);
}

TEST(FindCheckpointTest, PassesOverNewerOnesThatAreDamaged) {
  const TempFolder folder;
  const std::string root = folder.path();
  std::vector<std::string> all;
  for (const int cut : {1, 2, 3, 4})
    all.push_back(Must(Complete(root, MakeModel(1, 100 * cut), cut)));
  FlipLastBit(all[0] + "/server-0-thread-0.safetensors");  // Nobody looks.
  FlipLastBit(all[2] + "/server-0-thread-0.safetensors");
  fs::remove(all[3] + "/manifest.json");
  std::vector<std::string> passed_over;
  EXPECT_EQ(Must(FindCheckpoint(root, &passed_over)), all[1]);
  EXPECT_THAT(passed_over,
              UnorderedElementsAre(
                  AllOf(HasSubstr("checkpoint " + all[2] + " cannot be used: "),
                        HasSubstr("the file is damaged")),
                  AllOf(HasSubstr("checkpoint " + all[3] + " cannot be used: "),
                        HasSubstr("manifest.json"))));
  // Who names one gets this one or none.
  const absl::Status named = FindCheckpoint(all[2], &passed_over).status();
  EXPECT_TRUE(absl::IsDataLoss(named)) << named;
}

TEST(FindCheckpointTest, SaysWhatItHasLookedFor) {
  const TempFolder folder;
  std::vector<std::string> passed_over;
  absl::Status status = FindCheckpoint(folder.path(), &passed_over).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(Text(status),
              AllOf(HasSubstr(folder.File("manifest.json")),
                    HasSubstr(folder.File("checkpoints")), HasSubstr("step-")));
  status = FindCheckpoint(folder.File("none"), &passed_over).status();
  EXPECT_TRUE(absl::IsNotFound(status));
  EXPECT_THAT(Text(status), HasSubstr(folder.File("none") + " is no folder"));
  EXPECT_TRUE(absl::IsNotFound(FindCheckpoint("", &passed_over).status()));
  // What was never completed is none.
  const Model model = MakeModel(1);
  WriteParts(PartialFolder(folder.path(), kRun, 1), model, Shards(model, 4), 2);
  EXPECT_TRUE(
      absl::IsNotFound(FindCheckpoint(folder.path(), &passed_over).status()));
  FlipLastBit(Must(Complete(folder.path(), MakeModel(1), 1)) +
              "/server-1-thread-0.safetensors");
  status = FindCheckpoint(folder.path(), &passed_over).status();
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(Text(status), AllOf(HasSubstr("the only checkpoint in"),
                                  HasSubstr("the file is damaged")));
  EXPECT_THAT(passed_over, IsEmpty());
}

TEST(FindCheckpointTest, OfARunWhoseConfigNamesTheFolder) {
  const TempFolder folder;
  const std::string shared = folder.File("shared");
  const std::string newest = Must(Complete(shared, MakeModel(1, 100), 1));
  fs::create_directories(folder.File("run"));
  std::vector<std::string> passed_over;
  EXPECT_TRUE(absl::IsNotFound(
      FindCheckpoint(folder.File("run"), &passed_over).status()));
  folder.Write("run/cluster.textproto",
               absl::StrCat("checkpoint { folder: '", shared, "' }"));
  EXPECT_EQ(Must(FindCheckpoint(folder.File("run"), &passed_over)), newest);
  // What the run's own folder has comes first.
  const std::string own =
      Must(Complete(folder.File("run/checkpoints"), MakeModel(1, 50), 1));
  EXPECT_EQ(Must(FindCheckpoint(folder.File("run"), &passed_over)), own);
  EXPECT_THAT(passed_over, IsEmpty());
}

TEST(FindCheckpointTest, AConfigThatIsTooLargeIsNotRead) {
  const TempFolder folder;
  const std::string config =
      folder.Write("cluster.textproto", "checkpoint { folder: '/ck' }");
  fs::resize_file(config, kConfigFileBytesMax + 1);
  std::vector<std::string> passed_over;
  for (const absl::Status& failed :
       {FindCheckpoint(folder.path(), &passed_over).status(),
        FindBestCheckpoint(folder.path()).status()}) {
    EXPECT_TRUE(absl::IsDataLoss(failed)) << failed;
    EXPECT_THAT(Text(failed),
                AllOf(HasSubstr(config), HasSubstr("has 1048577 bytes"),
                      HasSubstr("at most 1048576 are read")));
  }
}

// A root with checkpoints of several runs, whose run 7 goes on.
class GoOnTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<StoredCheckpoint>> GoOn(
      const std::string& began_with = "", uint64_t run = 7) {
    passed_over_.clear();
    return CheckpointToGoOnFrom(
        root_,
        [run](const checkpoint::Manifest& manifest) {
          return manifest.run() == run;
        },
        began_with, &passed_over_);
  }
  static std::string CompleteIn(const std::string& root, int64_t clock, int cut,
                                uint64_t run) {
    Model model = MakeModel(1, clock);
    model.manifest.set_run(run);
    return Must(Complete(root, model, cut));
  }
  std::string CompleteOne(int64_t clock, int cut, uint64_t run) const {
    return CompleteIn(root_, clock, cut, run);
  }
  static void Damage(const std::string& checkpoint) {
    FlipLastBit(checkpoint + "/server-0-thread-0.safetensors");
  }
  static void DamageManifest(const std::string& checkpoint) {
    FlipLastBit(checkpoint + "/manifest.json");
  }

  const TempFolder folder_;
  const std::string root_ = folder_.File("checkpoints");
  std::vector<std::string> passed_over_;
};

TEST_F(GoOnTest, OnlyThoseThatAreOursCount) {
  EXPECT_EQ(Must(GoOn()), nullptr) << "there is no such folder yet";
  CompleteOne(100, 1, 7);
  const std::string ours = CompleteOne(200, 2, 7);
  CompleteOne(300, 3, 8);
  EXPECT_EQ(Must(GoOn())->folder(), ours);
  EXPECT_EQ(Must(GoOn("", 9)), nullptr);
  EXPECT_THAT(passed_over_, IsEmpty());
}

TEST_F(GoOnTest, AJobWhoseCheckpointsAreAllDamagedDoesNotBeginAnew) {
  const std::string first = CompleteOne(100, 1, 7);
  const std::string ours = CompleteOne(200, 2, 7);
  CompleteOne(300, 3, 8);
  Damage(first);
  Damage(ours);
  const absl::Status none = GoOn().status();
  EXPECT_TRUE(absl::IsDataLoss(none)) << none;
  EXPECT_THAT(Text(none), AllOf(HasSubstr(first), HasSubstr(ours),
                                HasSubstr("none of the 2 checkpoints"),
                                HasSubstr("move their folders away")));
  EXPECT_THAT(passed_over_, IsEmpty());
}

TEST_F(GoOnTest, NorDoesOneWhoseManifestsCannotBeRead) {
  const std::string torn = CompleteOne(100, 1, 7);
  DamageManifest(torn);
  const std::string empty = folder_.File("checkpoints/step-00000007");
  fs::create_directory(empty);
  const absl::Status none = GoOn().status();
  EXPECT_TRUE(absl::IsDataLoss(none)) << none;
  EXPECT_THAT(Text(none), AllOf(HasSubstr(torn + " cannot be used: "),
                                HasSubstr(empty + " cannot be used: ")));
  const std::string older = CompleteOne(50, 3, 7);
  EXPECT_EQ(Must(GoOn())->folder(), older);
  EXPECT_THAT(passed_over_, SizeIs(2));
}

TEST_F(GoOnTest, NorDoesOneWhoseFolderCannotBeRead) {
  fs::create_symlink(root_, root_);
  const absl::Status loop = GoOn().status();
  EXPECT_TRUE(absl::IsUnavailable(loop)) << loop;
  EXPECT_THAT(Text(loop), HasSubstr("list " + root_));
  fs::remove(root_);
  folder_.Write("checkpoints", "a file");
  EXPECT_TRUE(absl::IsUnavailable(GoOn().status()));
}

TEST_F(GoOnTest, TheOneThatItBeganWithIsOlderThanAllOfItsOwn) {
  const std::string began_with =
      CompleteIn(folder_.File("elsewhere"), 40, 1, 6);
  EXPECT_EQ(Must(GoOn(began_with))->folder(), began_with);
  const std::string ours = CompleteOne(200, 2, 7);
  EXPECT_EQ(Must(GoOn(began_with))->folder(), ours);
  Damage(ours);
  EXPECT_EQ(Must(GoOn(began_with))->folder(), began_with);
  EXPECT_THAT(passed_over_, ElementsAre(HasSubstr(ours)));
  Damage(began_with);
  const absl::Status none = GoOn(began_with).status();
  EXPECT_TRUE(absl::IsDataLoss(none)) << none;
  EXPECT_THAT(Text(none), AllOf(HasSubstr(ours), HasSubstr(began_with)));
}

}  // namespace slackline::checkpoint_files_test
