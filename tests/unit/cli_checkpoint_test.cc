// Goal: what `slackline export` writes is the model that the checkpoint has, as
// others read it; what `slackline import` makes is a checkpoint of these
// parameters; neither overwrites anything, and both say what is wrong.
// Method: the commands' functions, on small files.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/block/bounds.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/part_file.h"
#include "common/io/safetensors.h"
#include "common/process/exit_code.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/checkpoint/export_command.h"
#include "tools/cli/checkpoint/import_command.h"

namespace slackline::cli_checkpoint_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

const std::vector<float> kWeight = {1, 2.5f, -3, 4, 5, -0.0f};
const std::vector<float> kScale = {7};

struct Output {
  int exit_code = 0;
  std::string out;
  std::string err;
};

Output Captured(const std::function<int()>& command) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  Output output;
  output.exit_code = command();
  output.out = ::testing::internal::GetCapturedStdout();
  output.err = ::testing::internal::GetCapturedStderr();
  return output;
}

Output Export(const std::string& checkpoint, const std::string& file,
              bool json = false) {
  return Captured([&] { return ExportCheckpoint({checkpoint, file, json}); });
}

Output Import(const std::string& file, const std::string& out,
              bool json = false) {
  return Captured([&] {
    return ImportCheckpoint({.file = file, .out = out, .json = json});
  });
}

// Two tensors of float32, one of F16 and a counter of BatchNorm.
std::string WriteMixedModel(const TempFolder& folder) {
  const std::string file = folder.File("mixed");
  const std::vector<TypedTensor> others = {
      {"net.half", "F16", {1}, {std::byte{0x00}, std::byte{0xC1}}},
      {"net.batches", "I64", {}, std::vector<std::byte>(8)}};
  Must(WriteSafetensors(
      file, {{"net.weight", {2, 3}, kWeight}, {"a.scale", {}, kScale}}, {},
      others));
  return file;
}

ShardState Shard(const std::string& table, const std::vector<float>& of,
                 int64_t begin, int64_t end) {
  const Payload values = Payload::Copy(
      of.data() + begin, static_cast<size_t>(end - begin) * sizeof(float));
  ShardState shard = {.table = table, .region = {begin, end}, .values = values};
  if (table == "net.weight") shard.slots.push_back(values);
  return shard;
}

// A checkpoint of a run, in two parts and with momentum.
std::string WriteCheckpoint(const std::string& root, int64_t clock, int cut) {
  checkpoint::Manifest manifest;
  manifest.set_format(kCheckpointFormat);
  manifest.set_job("digits");
  manifest.set_mode("ssp:3");
  manifest.set_workers(2);
  manifest.set_steps_per_epoch(10);
  manifest.set_clock(clock);
  checkpoint::Table& weight = *manifest.add_table();
  weight.set_name("net.weight");
  weight.add_shape(2);
  weight.add_shape(3);
  weight.mutable_optimizer()->mutable_momentum()->set_learning_rate(0.1);
  manifest.add_table()->set_name("a.scale");
  const std::string partial = PartialFolder(root, 5, cut);
  *manifest.add_part() = Must(WritePart(
      partial, "server-0-thread-0.safetensors",
      {Shard("a.scale", kScale, 0, 1), Shard("net.weight", kWeight, 4, 6)}));
  *manifest.add_part() =
      Must(WritePart(partial, "server-1-thread-0.safetensors",
                     {Shard("net.weight", kWeight, 0, 4)}));
  return Must(CompleteCheckpoint(root, 5, cut, manifest, 3));
}

TEST(ExportTest, WritesTheTablesAsAModelFileHasThem) {
  const TempFolder folder;
  const std::string root = folder.File("run/checkpoints");
  WriteCheckpoint(root, 100, 1);
  const std::string checkpoint = WriteCheckpoint(root, 1200, 2);
  const std::string file = folder.File("model.safetensors");
  const Output done = Export(folder.File("run"), file);
  EXPECT_EQ(done.exit_code, kExitDone);
  EXPECT_EQ(done.err, "");
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("wrote " + file +
                              ": 2 tables of 7 floats in "
                              "all, "),
                    HasSubstr("as they are at step 1200 in " + checkpoint)));
  // As a run writes its model: the same bytes.
  Must(WriteSafetensors(
      folder.File("expected"),
      {{"net.weight", {2, 3}, kWeight}, {"a.scale", {}, kScale}},
      {{"job", "digits"}, {"mode", "ssp:3"}, {"step", "1200"}}));
  EXPECT_EQ(ReadWholeFile(file), ReadWholeFile(folder.File("expected")));
}

TEST(ExportTest, PrintsJson) {
  const TempFolder folder;
  const std::string checkpoint = WriteCheckpoint(folder.File("root"), 1200, 1);
  const std::string file = folder.File("model.safetensors");
  const Output done = Export(checkpoint, file, /*json=*/true);
  EXPECT_EQ(done.exit_code, kExitDone);
  EXPECT_EQ(nlohmann::json::parse(done.out),
            nlohmann::json({{"checkpoint", checkpoint},
                            {"file", file},
                            {"step", 1200},
                            {"tables", 2},
                            {"floats", 7},
                            {"bytes", fs::file_size(file)}}));
}

TEST(ExportTest, SaysWhichCheckpointsItHasPassedOver) {
  const TempFolder folder;
  const std::string older = WriteCheckpoint(folder.path(), 100, 1);
  const std::string newer = WriteCheckpoint(folder.path(), 200, 2);
  fs::resize_file(newer + "/server-0-thread-0.safetensors", 100);
  const Output done = Export(folder.path(), folder.File("m"));
  EXPECT_EQ(done.exit_code, kExitDone);
  EXPECT_THAT(done.err, AllOf(HasSubstr(newer + " cannot be used"),
                              HasSubstr("has 100 bytes")));
  EXPECT_THAT(done.out, HasSubstr("step 100 in " + older));
}

TEST(ExportTest, OverwritesNothingAndSaysWhatIsWrong) {
  const TempFolder folder;
  const std::string checkpoint = WriteCheckpoint(folder.path(), 100, 1);
  folder.Write("old", "old");
  Output done = Export(checkpoint, folder.File("old"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr("slackline export: " + folder.File("old") +
                                  " is there already; "));
  EXPECT_EQ(ReadWholeFile(folder.File("old")), "old");
  done = Export(folder.File("none"), folder.File("new"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr(folder.File("none") + " is no folder"));
  done = Export(checkpoint, folder.File("none/new"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr("create the folder first"));
  fs::remove(checkpoint + "/server-1-thread-0.safetensors");
  done = Export(checkpoint, folder.File("new"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr("server-1-thread-0.safetensors"));
  EXPECT_EQ(done.out, "");
  EXPECT_FALSE(fs::exists(folder.File("new")));
}

TEST(ImportTest, MakesACheckpointOfStepZeroWithTheValuesAlone) {
  const TempFolder folder;
  std::vector<float> large(200000);
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<float>(i);
  Must(WriteSafetensors(
      folder.File("m"),
      {{"net.weight", {1000, 200}, large}, {"a.scale", {}, kScale}},
      {{"job", "digits"}}));
  const Output done = Import(folder.File("m"), folder.File("start"));
  EXPECT_EQ(done.exit_code, kExitDone) << done.err;
  const std::string checkpoint = folder.File("start/step-00000000");
  EXPECT_THAT(done.out, AllOf(HasSubstr("wrote " + checkpoint +
                                        ": 2 tables of 200001 floats in all, "),
                              HasSubstr("--resume " + folder.File("start"))));
  std::vector<std::string> passed_over;
  const auto stored = Must(OpenCheckpoint(folder.File("start"), &passed_over));
  EXPECT_EQ(stored->folder(), checkpoint);
  const checkpoint::Manifest& manifest = stored->manifest();
  EXPECT_EQ(manifest.clock(), 0);
  EXPECT_EQ(manifest.job(), "digits");
  ASSERT_EQ(manifest.table_size(), 2);
  EXPECT_FALSE(manifest.table(0).has_optimizer());
  EXPECT_THAT(manifest.table(0).shape(), ElementsAre(1000, 200));
  EXPECT_THAT(manifest.table(1).shape(), IsEmpty());
  EXPECT_EQ(manifest.part(0).shards(), 4 + 1) << "shards of 65536";
  const ShardState read =
      Must(stored->Read("net.weight", {1, 200000}, FloatsForm()));
  EXPECT_EQ(
      std::memcmp(read.values.data(), large.data() + 1, 199999 * sizeof(float)),
      0);
  EXPECT_THAT(read.slots, IsEmpty());
  EXPECT_EQ(read.version, 0u);
}

TEST(ImportTest, WhatIsExportedComesBack) {
  const TempFolder folder;
  const std::string checkpoint = WriteCheckpoint(folder.File("root"), 1200, 1);
  ASSERT_EQ(Export(checkpoint, folder.File("a")).exit_code, kExitDone);
  const Output done =
      Import(folder.File("a"), folder.File("start"), /*json=*/true);
  EXPECT_EQ(done.exit_code, kExitDone) << done.err;
  const nlohmann::json json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["checkpoint"], folder.File("start/step-00000000"));
  EXPECT_EQ(json["tables"], 2);
  EXPECT_EQ(json["floats"], 7);
  EXPECT_GT(json["bytes"], 7 * 4);
  ASSERT_EQ(Export(folder.File("start"), folder.File("b")).exit_code,
            kExitDone);
  const SafetensorsFile a = Must(ReadSafetensors(folder.File("a")));
  const SafetensorsFile b = Must(ReadSafetensors(folder.File("b")));
  ASSERT_EQ(b.tensors.size(), a.tensors.size());
  for (size_t t = 0; t < a.tensors.size(); ++t) {
    EXPECT_EQ(b.tensors[t].name, a.tensors[t].name);
    EXPECT_EQ(b.tensors[t].shape, a.tensors[t].shape);
    EXPECT_EQ(b.tensors[t].values, a.tensors[t].values);
  }
}

TEST(ImportTest, TakesOtherFloatsAndLeavesOutWhatIsNotWanted) {
  const TempFolder folder;
  const std::string file = WriteMixedModel(folder);
  const auto take = [&](const std::string& out, std::vector<std::string> only,
                        std::vector<std::string> skip, bool json = false) {
    return Captured([&] {
      return ImportCheckpoint({.file = file,
                               .out = folder.File(out),
                               .only = std::move(only),
                               .skip = std::move(skip),
                               .json = json});
    });
  };
  Output done = take("all", {}, {});
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, AllOf(HasSubstr("'net.batches' is of type I64"),
                              HasSubstr("--skip net.batches")));
  EXPECT_FALSE(fs::exists(folder.File("all")));

  done = take("floats", {}, {"net.batches"});
  EXPECT_EQ(done.exit_code, kExitDone) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("3 tables of 8 floats"),
                              HasSubstr("; to float32: 1 tensor of F16"),
                              HasSubstr("; left out: 1 tensor;")));
  std::vector<std::string> passed_over;
  const auto stored = Must(OpenCheckpoint(folder.File("floats"), &passed_over));
  const Payload half = Must(stored->ReadValues("net.half", {0, 1}));
  float value = 0;
  std::memcpy(&value, half.data(), sizeof(value));
  EXPECT_EQ(value, -2.5f);

  done = take("net", {"net.w", "net.h"}, {}, /*json=*/true);
  EXPECT_EQ(done.exit_code, kExitDone) << done.err;
  const nlohmann::json json = nlohmann::json::parse(done.out);
  EXPECT_EQ(json["tables"], 2);
  EXPECT_EQ(json["converted"], nlohmann::json({{"F16", 1}}));
  EXPECT_EQ(json["left_out"], nlohmann::json({"a.scale", "net.batches"}));

  const struct {
    std::vector<std::string> only, skip;
    std::string why;
  } cases[] = {
      {{}, {"net.batch"}, "--skip: no tensor of " + file + " is 'net.batch'"},
      {{"b."}, {}, "--only: no tensor of " + file + " begins with 'b.'"},
      {{"a."}, {"a.scale"}, "leave no tensor of " + file}};
  for (const auto& c : cases) {
    done = take("none", c.only, c.skip);
    EXPECT_EQ(done.exit_code, kExitFailed) << c.why;
    EXPECT_THAT(done.err, HasSubstr(c.why));
    EXPECT_FALSE(fs::exists(folder.File("none")));
  }
  EXPECT_THAT(
      take("none", {}, {"x"}).err,
      HasSubstr("there are net.weight, a.scale, net.half, net.batches"));
}

TEST(ImportTest, OverwritesNothingAndLeavesNothing) {
  const TempFolder folder;
  Must(WriteSafetensors(folder.File("m"), {{"a", {}, kScale}}, {}));
  fs::create_directory(folder.File("empty"));
  EXPECT_EQ(Import(folder.File("m"), folder.File("empty")).exit_code,
            kExitDone);
  Output done = Import(folder.File("m"), folder.File("empty"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr("slackline import: --out: " +
                                  folder.File("empty") + " is there"));
  done = Import(folder.File("m"), folder.File("m"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_TRUE(fs::is_regular_file(folder.File("m")));
  done = Import(folder.File("none"), folder.File("new"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr(folder.File("none")));
  folder.Write("bad", "no tensors here");
  done = Import(folder.File("bad"), folder.File("new"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr("not a safetensors file"));
  Must(WriteSafetensors(folder.File("nothing"), {}, {}));
  done = Import(folder.File("nothing"), folder.File("new"));
  EXPECT_EQ(done.exit_code, kExitFailed);
  EXPECT_THAT(done.err, HasSubstr("has no tensors"));
  // A name that no table may have.
  Must(WriteSafetensors(folder.File("long"),
                        {{std::string(300, 'x'), {}, kScale}}, {}));
  done = Import(folder.File("long"), folder.File("new"));
  EXPECT_NE(done.exit_code, kExitDone);
  EXPECT_THAT(done.err,
              AllOf(HasSubstr(folder.File("long")), HasSubstr("300 bytes")));
  for (const std::string& name :
       {std::string("a\x1b[2Jb"), std::string("../../a"), std::string("/a")}) {
    Must(WriteSafetensors(folder.File("name"), {{name, {}, kScale}}, {}));
    done = Import(folder.File("name"), folder.File("new"));
    EXPECT_NE(done.exit_code, kExitDone) << name;
    EXPECT_THAT(done.err,
                AllOf(HasSubstr(folder.File("name")), HasSubstr("its name "),
                      Not(HasSubstr("\x1b"))));
  }
  Must(WriteSafetensors(folder.File("tensorflow"),
                        {{"dense/kernel:0", {}, kScale}}, {}));
  EXPECT_EQ(Import(folder.File("tensorflow"), folder.File("ours")).exit_code,
            kExitDone);
  const std::vector<float> bad = {1, std::nanf(""), 2};
  Must(WriteSafetensors(folder.File("nan"), {{"a", {3}, bad}}, {}));
  done = Import(folder.File("nan"), folder.File("new"));
  EXPECT_NE(done.exit_code, kExitDone);
  EXPECT_THAT(done.err, AllOf(HasSubstr(folder.File("nan")),
                              HasSubstr("tensor 'a': element 1 is nan")));
  std::vector<TensorView> many;
  for (size_t i = 0; i <= kTablesOfJobMax; ++i)
    many.push_back({absl::StrCat("t", i), {}, kScale});
  Must(WriteSafetensors(folder.File("many"), many, {}));
  done = Import(folder.File("many"), folder.File("new"));
  EXPECT_NE(done.exit_code, kExitDone);
  EXPECT_THAT(done.err, AllOf(HasSubstr(folder.File("many")),
                              HasSubstr("at most 16384 tables")));
  EXPECT_TRUE(!fs::exists(folder.File("new")) ||
              fs::is_empty(folder.File("new")));
}

}  // namespace slackline::cli_checkpoint_test
