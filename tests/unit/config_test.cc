#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "common/block/config_difference.h"
#include "common/config/address_secret.h"
#include "common/config/cluster_config.h"
#include "common/config/same_job.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "job/job_config.h"

namespace slackline::config_test {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The smallest valid config, one block in a line so that places are plain.
constexpr char kMinimal[] =
    "job: \"test\"\n"                                    // 1
    "server { host: \"127.0.0.1\" }\n"                   // 2
    "worker { host: \"127.0.0.1\" count: 2 }\n"          // 3
    "model { mlp { hidden: 8 } }\n"                      // 4
    "data { teacher_student {} batch_size: 16 }\n"       // 5
    "optimizer { sgd { learning_rate: 0.1 } }\n"         // 6
    "sync { ssp { staleness: 3 } pull_ahead: false }\n"  // 7
    "train { epochs: 2 }\n"                              // 8
    "limits { }\n";                                      // 9

// kMinimal with `from` replaced by `to`; `from` has to occur.
std::string With(const std::string& from, const std::string& to) {
  const std::string text = kMinimal;
  EXPECT_THAT(text, HasSubstr(from));
  return absl::StrReplaceAll(text, {{from, to}});
}

config::ClusterConfig ParseOrDie(const std::string& text,
                                 const ConfigOverrides& overrides = {}) {
  auto config = ParseJobConfig(text, "c.txt", overrides);
  EXPECT_TRUE(config.ok()) << config.status() << "\n" << text;
  return config.ok() ? *config : config::ClusterConfig();
}

// The lines of the error, none if the text is valid.
std::vector<std::string> Errors(const std::string& text,
                                const ConfigOverrides& overrides = {}) {
  const auto config = ParseJobConfig(text, "c.txt", overrides);
  if (config.ok()) return {};
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return absl::StrSplit(std::string(config.status().message()), '\n');
}

bool Equal(const config::ClusterConfig& a, const config::ClusterConfig& b) {
  return google::protobuf::util::MessageDifferencer::Equals(a, b);
}

// ---- Grammar and types ------------------------------------------------------

struct ErrorCase {
  std::string name;
  std::string from;  // In kMinimal.
  std::string to;
  std::string prefix;    // Of the only error.
  std::string contains;  // Key words.
};

void PrintTo(const ErrorCase& c, std::ostream* stream) {
  *stream << "'" << c.from << "' replaced by '" << c.to << "'";
}

class ConfigErrorTest : public ::testing::TestWithParam<ErrorCase> {};

TEST_P(ConfigErrorTest, NamesPlacePathAndFix) {
  const ErrorCase& c = GetParam();
  EXPECT_THAT(Errors(With(c.from, c.to)),
              ElementsAre(AllOf(StartsWith(c.prefix), HasSubstr(c.contains))));
}

std::string CaseName(const ::testing::TestParamInfo<ErrorCase>& info) {
  return info.param.name;
}

INSTANTIATE_TEST_SUITE_P(
    Grammar, ConfigErrorTest,
    ::testing::Values(
        ErrorCase{"UnknownField",
                  "job:", "jobb:", "c.txt:1:1: jobb: unknown field 'jobb'",
                  "did you mean 'job'? (fields here: job, coordinator,"},
        ErrorCase{"UnknownFieldInBlock", "worker { host", "worker { hosst",
                  "c.txt:3:10: worker[0].hosst: unknown field 'hosst'",
                  "did you mean 'host'? (fields here: host, count,"},
        ErrorCase{"UnknownBlock", "limits {", "limit { a: 1 b { c: 2 } ",
                  "c.txt:9:1: limit: unknown field 'limit'",
                  "did you mean 'limits'?"},
        ErrorCase{"UnknownFieldUnlikeAnyOther", "limits {", "limits { zzz: 1",
                  "c.txt:9:10: limits.zzz: unknown field 'zzz' (fields here",
                  "lease_ms"},
        ErrorCase{"FieldInEmptyBlock", "limits { }",
                  "schedule { constant { rate: 1 } }",
                  "c.txt:9:23: schedule.constant.rate: unknown field",
                  "no fields here"},
        ErrorCase{"WordForNumber", "count: 2", "count: two",
                  "c.txt:3:35: worker[0].count: value is two; ",
                  "a whole number of at most 2147483647 is required"},
        ErrorCase{"StringForNumber", "epochs: 2", "epochs: \"2\"",
                  "c.txt:8:17: train.epochs: value is \"2\"; ",
                  "a number is required"},
        ErrorCase{"FractionForWholeNumber", "count: 2", "count: 2.5",
                  "c.txt:3:35: worker[0].count: value is 2.5; ",
                  "a whole number"},
        ErrorCase{"NumberBeyondItsType", "count: 2", "count: 99999999999",
                  "c.txt:3:35: worker[0].count: value is 99999999999; ",
                  "at most 2147483647"},
        ErrorCase{"NumberForString", "\"test\"", "7",
                  "c.txt:1:6: job: value is 7; ",
                  "a string in double quotes is required"},
        ErrorCase{"UnknownEnumValue", "count: 2", "device: GPU",
                  "c.txt:3:36: worker[0].device: value is GPU; ",
                  "one of CPU, CUDA is required"},
        ErrorCase{"UnknownEnumValueOfSeveral", "{ }", "{ transport: RDMA }",
                  "c.txt:9:21: limits.transport: value is RDMA; ",
                  "one of AUTO, TCP, IPC, SHM is required"},
        ErrorCase{"WordForTruthValue", "ahead: false", "ahead: maybe",
                  "c.txt:7:41: sync.pull_ahead: value is maybe; ",
                  "true or false is required"},
        ErrorCase{"FieldGivenTwice", "epochs: 2", "epochs: 2 epochs: 3",
                  "c.txt:8:19: train.epochs: ", "multiple times"},
        ErrorCase{"TwoBranchesOfOneChoice", "ssp {", "bsp {} ssp {",
                  "c.txt:7:15: sync.ssp: ", "another member of oneof"},
        ErrorCase{"MissingColon", "staleness: 3", "staleness 3",
                  "c.txt:7:24: sync.ssp.staleness: ", "xpected \":\""},
        ErrorCase{"MissingBrace", "limits { }", "limits {",
                  "c.txt:10:1: limits: the file ends inside this block; ",
                  "close the block of line 9 with '}'"},
        ErrorCase{"MissingBraceBeforeAnotherBlock", "limits { }",
                  "limits {\nrebalance { }\njob: \"x\"",
                  "c.txt:10:1: limits.rebalance: 'rebalance' is no field of "
                  "this block but of one around it; ",
                  "the block of line 9 lacks its '}'"},
        ErrorCase{"StrayBrace", "limits { }", "limits { } }",
                  "c.txt:9:12: ", "xpected"},
        ErrorCase{"UnterminatedString", "\"test\"", "\"test",
                  "c.txt:1:11: job: ", "tring"}),
    CaseName);

TEST(ConfigParseTest, WhatIsNoUtf8TextIsNamed) {
  const std::string utf16("\xFF\xFEj\0o\0b\0", 8);
  const std::string without_mark("j\0o\0b\0", 6);
  for (const std::string& text :
       {std::string("\xEF\xBB\xBFjob: \"a\""), utf16, without_mark}) {
    const absl::Status parsed = ParseJobConfig(text, "c.txt").status();
    EXPECT_EQ(parsed.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(parsed.message()),
        AllOf(StartsWith("c.txt:1:1: "), HasSubstr("save it as UTF-8")));
  }
}

// Whatever follows is taken for the block's, and would be a line each.
TEST(ConfigParseTest, AMissingBraceIsOneProblem) {
  EXPECT_THAT(Errors(absl::StrReplaceAll(kMinimal, {{"host: \"127.0.0.1\" }",
                                                     "host: \"127.0.0.1\""}})),
              ElementsAre(HasSubstr("lacks its '}'")));
}

TEST(ConfigParseTest, EveryUnknownFieldIsReported) {
  EXPECT_THAT(Errors(absl::StrReplaceAll(
                  kMinimal, {{"count: 2", "cuont: 2"}, {"epochs", "epoch"}})),
              ElementsAre(StartsWith("c.txt:3:28: worker[0].cuont: unknown "
                                     "field 'cuont'; did you mean 'count'?"),
                          StartsWith("c.txt:8:9: train.epoch: unknown field")));
}

TEST(ConfigParseTest, ElementsOfAListAreCountedInTheirPath) {
  EXPECT_THAT(
      Errors(absl::StrCat(kMinimal,
                          "worker [ { host: \"127.0.0.1\" },\n { cout: 1 } ]")),
      ElementsAre(StartsWith("c.txt:11:4: worker[2].cout: unknown field")));
}

TEST(ConfigParseTest, DeepNestingIsRefused) {
  for (const std::string opening : {"a {", "server {", "a: [", "a < b {} "}) {
    std::string text;
    for (int i = 0; i < 50000; ++i) text += opening;
    EXPECT_THAT(Errors(text),
                ElementsAre(AllOf(StartsWith("c.txt:1:"),
                                  HasSubstr("nested more than 32 deep"))))
        << opening;
  }
}

TEST(ConfigParseTest, HugeTextIsRefused) {
  EXPECT_THAT(Errors(std::string(2 << 20, ' ')),
              ElementsAre(AllOf(StartsWith("c.txt:1:1: "),
                                HasSubstr("larger than 1048576 bytes"))));
}

// ---- Values -----------------------------------------------------------------

INSTANTIATE_TEST_SUITE_P(
    Values, ConfigErrorTest,
    ::testing::Values(
        ErrorCase{"NoJob", "job: \"test\"", "", "c.txt:1:1: job: is missing",
                  "job: \"mnist\""},
        ErrorCase{"JobWithSlash", "\"test\"", "\"../test\"",
                  "c.txt:1:1: job: value is '", "1 to 64 letters"},
        ErrorCase{"JobTooLong", "\"test\"",
                  absl::StrCat("\"", std::string(65, 'x'), "\""),
                  "c.txt:1:1: job: value is '", "1 to 64 letters"},
        ErrorCase{"NoServer", "server { host: \"127.0.0.1\" }", "",
                  "c.txt:1:1: server: is missing", "at least one"},
        ErrorCase{"NoWorker", "worker { host: \"127.0.0.1\" count: 2 }", "",
                  "c.txt:1:1: worker: is missing", "at least one"},
        ErrorCase{"NoHost", "worker { host: \"127.0.0.1\"", "worker {",
                  "c.txt:3:1: worker[0].host: is missing", "address"},
        ErrorCase{"NoServersInGroup", "server {", "server { count: 0",
                  "c.txt:2:10: server[0].count: value is 0; 1 to 1024", ""},
        ErrorCase{"NoThreads", "server {", "server { threads: 0",
                  "c.txt:2:10: server[0].threads: value is 0; 1 to 1024", ""},
        ErrorCase{"TooManyServers", "server {", "server { count: 2000",
                  "c.txt:2:10: server[0].count: value is 2000; 1 to 1024", ""},
        ErrorCase{"NegativeWorkers", "count: 2", "count: -2",
                  "c.txt:3:28: worker[0].count: value is -2; 1 to 4096", ""},
        ErrorCase{"EmptyCommand", "count: 2", "command: \" \"",
                  "c.txt:3:28: worker[0].command: names no program",
                  "python3 train.py"},
        ErrorCase{"CommandForAShell", "count: 2", "command: \"train > log\"",
                  "c.txt:3:28: worker[0].command: value is 'train > log'",
                  "start a shell: sh -c '...'"},
        ErrorCase{"NoWorkerThreads", "count: 2", "threads: 0",
                  "c.txt:3:28: worker[0].threads: value is 0; 1 to 256", ""},
        ErrorCase{"UnspecifiedDevice", "count: 2", "device: DEVICE_UNSPECIFIED",
                  "c.txt:3:28: worker[0].device: ", "CPU or CUDA"},
        ErrorCase{"SpeedUp", "count: 2", "slowdown: 0.5",
                  "c.txt:3:28: worker[0].slowdown: value is 0.5; 1 to 1000",
                  "own speed"},
        ErrorCase{"ServerSpeedUp", "server {", "server { slowdown: 0.9",
                  "c.txt:2:10: server[0].slowdown: value is 0.9; 1 to 1000",
                  "own speed"},
        ErrorCase{"PortTooLarge", "server {", "server { port: 65536",
                  "c.txt:2:10: server[0].port: value is 65536; 0 to 65535", ""},
        ErrorCase{"NegativePort", "server {", "server { port: -1",
                  "c.txt:2:10: server[0].port: value is -1; 0 to 65535", ""},
        ErrorCase{"PortRangeTooLarge", "server {",
                  "server { port: 65534 count: 2 threads: 2",
                  "c.txt:2:10: server[0].port: value is 65534; ",
                  "ports up to 65537"},
        ErrorCase{"CoordinatorPort", "limits {",
                  "coordinator { port: 70000 } limits {",
                  "c.txt:9:15: coordinator.port: value is 70000; 0 to 65535",
                  ""},
        ErrorCase{"PortOfCoordinator", "server {",
                  "server { port: 7699 threads: 2",
                  "c.txt:2:10: server[0].port: address 127.0.0.1:7700 is "
                  "already taken by coordinator.port (default)",
                  "choose another port, or 0"},
        ErrorCase{"PortOfAnotherGroup", "worker {",
                  "server { host: \"localhost\" port: 9003 } "
                  "server { host: \"127.0.0.1\" port: 9000 count: 2 threads: 2}"
                  " worker {",
                  "c.txt:3:68: server[2].port: address 127.0.0.1:9003 is "
                  "already taken by server[1].port (c.txt:3:28)",
                  "choose another port"},
        ErrorCase{"PortsOfWorkers", "count: 2", "count: 2 port: 7699",
                  "c.txt:3:37: worker[0].port: address 127.0.0.1:7700 is "
                  "already taken by coordinator.port (default)",
                  "choose another port, or 0"},
        ErrorCase{"WorkerPortsTooLarge", "count: 2", "count: 2 port: 65535",
                  "c.txt:3:37: worker[0].port: value is 65535; ",
                  "2 processes need ports up to 65536"},
        ErrorCase{"ListenIsStar", "count: 2", "count: 2 listen: \"*\"",
                  "c.txt:3:37: worker[0].listen: value is *; ", "0.0.0.0"},
        ErrorCase{"ListensNowhere", "limits {",
                  "coordinator { listen: \"a b\" } limits {",
                  "c.txt:9:15: coordinator.listen: value is ",
                  "only letters, digits"},
        ErrorCase{"NoModel", "model { mlp { hidden: 8 } }", "",
                  "c.txt:1:1: model: is missing, and data is there",
                  "or none for workers that are programs of their own"},
        ErrorCase{"EmptyModel", "model { mlp { hidden: 8 } }", "model {}",
                  "c.txt:4:1: model: is missing", "softmax, mlp, lenet"},
        ErrorCase{"LinearOnClasses", "mlp { hidden: 8 }", "linear {}",
                  "c.txt:4:9: model.linear: predicts real numbers, "
                  "data.teacher_student has classes",
                  "softmax {}"},
        ErrorCase{"NoTestCsv", "teacher_student {}", "csv { train: \"t\" }",
                  "c.txt:5:8: data.csv.test: is missing", "wine/test.csv"},
        ErrorCase{"EmptyCsvLabel", "teacher_student {}",
                  "csv { train: \"t\" test: \"t\" label: \"\" }",
                  "c.txt:5:35: data.csv.label: value is ''", "leave it out"},
        ErrorCase{"NoNpyLabels", "teacher_student {}",
                  "npy { train_inputs: \"t\" test_inputs: \"t\" test_labels: "
                  "\"t\" }",
                  "c.txt:5:8: data.npy.train_labels: is missing",
                  "faces/y_train.npy"},
        ErrorCase{"EmptyNormalisation", "teacher_student {}",
                  "teacher_student {} normalisation {}",
                  "c.txt:5:27: data.normalisation: is empty", "over_all {}"},
        ErrorCase{"GivenMeanWithoutDeviation", "teacher_student {}",
                  "idx {} normalisation { given { mean: 1 } }",
                  "c.txt:5:31: data.normalisation.given: there are 1 means and "
                  "0 deviations",
                  "deviation: 0.3081"},
        ErrorCase{"ZeroDeviation", "teacher_student {}",
                  "idx {} normalisation { given { mean: 1 deviation: 0 } }",
                  "c.txt:5:47: data.normalisation.given.deviation[0]: value is "
                  "0; above 0 is required",
                  ""},
        ErrorCase{"ChannelsOfText", "teacher_student {}",
                  "csv { train: \"t\" test: \"t\" } normalisation { "
                  "per_channel {} }",
                  "c.txt:5:53: data.normalisation.per_channel: only images "
                  "have channels",
                  "per_feature {}"},
        ErrorCase{"NoHiddenLayer", "hidden: 8", "",
                  "c.txt:4:9: model.mlp.hidden: is missing", "softmax {}"},
        ErrorCase{"EmptyHiddenLayer", "hidden: 8", "hidden: 8 hidden: 0",
                  "c.txt:4:25: model.mlp.hidden[1]: value is 0; 1 to 65536",
                  ""},
        ErrorCase{"EmptyHiddenLayerInList", "hidden: 8", "hidden: [8, 0]",
                  "c.txt:4:15: model.mlp.hidden[1]: value is 0; 1 to 65536",
                  ""},
        ErrorCase{"NoData", "data { teacher_student {} batch_size: 16 }", "",
                  "c.txt:1:1: data: is missing, and model is there",
                  "or none for workers that are programs of their own"},
        ErrorCase{"NoDataSource", "teacher_student {}", "",
                  "c.txt:5:1: data: is missing", "idx, libsvm, csv, npy and"},
        ErrorCase{"EmptyBatch", "batch_size: 16", "batch_size: 0",
                  "c.txt:5:27: data.batch_size: value is 0; 1 to 1048576", ""},
        ErrorCase{"AbsoluteFolder", "teacher_student {}",
                  "idx { folder: \"/data/mnist\" }",
                  "c.txt:5:14: data.idx.folder: value is '",
                  "leaves the data folder; write it relative to"},
        ErrorCase{"FolderAbove", "teacher_student {}",
                  "idx { folder: \"a/../../b\" }",
                  "c.txt:5:14: data.idx.folder: value is '",
                  "leaves the data folder; write it relative to"},
        ErrorCase{"ControlCharacterInFolder", "teacher_student {}",
                  "idx { folder: \"mnist\\000\" }",
                  "c.txt:5:14: data.idx.folder: value is 'mnist\\x00'; ",
                  "remove the control character"},
        ErrorCase{"NoTrainFile", "teacher_student {}",
                  "libsvm { test: \"t\" features: 3 }",
                  "c.txt:5:8: data.libsvm.train: is missing", "a9a/a9a.gz"},
        ErrorCase{"NoTestFile", "teacher_student {}",
                  "libsvm { train: \"t\" features: 3 }",
                  "c.txt:5:8: data.libsvm.test: is missing", "a9a/a9a.t.gz"},
        ErrorCase{"NoFeatureCount", "teacher_student {}",
                  "libsvm { train: \"t\" test: \"t\" }",
                  "c.txt:5:8: data.libsvm.features: is missing", "123"},
        ErrorCase{"ZeroFeatures", "teacher_student {}",
                  "libsvm { train: \"t\" test: \"t\" features: 0 }",
                  "c.txt:5:38: data.libsvm.features: value is 0; 1 to", ""},
        ErrorCase{"TeacherWithOneClass", "teacher_student {}",
                  "teacher_student { classes: 1 }",
                  "c.txt:5:26: data.teacher_student.classes: value is 1; 2 to",
                  ""},
        ErrorCase{"TeacherWithoutExamples", "teacher_student {}",
                  "teacher_student { train_examples: 0 }",
                  "c.txt:5:26: data.teacher_student.train_examples: value is 0",
                  ""},
        ErrorCase{
            "TeacherSeed", "teacher_student {}", "teacher_student { seed: -1 }",
            "c.txt:5:26: data.teacher_student.seed: value is -1", "at least 0"},
        ErrorCase{"LogisticOnTenClasses", "mlp { hidden: 8 }", "logistic {}",
                  "c.txt:5:8: data.teacher_student.classes: value is 10; ",
                  "two classes"},
        ErrorCase{"LenetOnOtherShapes", "mlp { hidden: 8 } }\ndata { teach",
                  "lenet {} }\ndata { libsvm { train: \"t\" test: \"t\" "
                  "features: 123 } batch_size: 1 } #",
                  "c.txt:5:38: data.libsvm.features: value is 123; ",
                  "784 is required"},
        ErrorCase{"NegativeL2",
                  "mlp { hidden: 8 } }\ndata { teacher_student {}",
                  "logistic { l2: -1 } } data { teacher_student { classes: 2 }",
                  "c.txt:4:20: model.logistic.l2: value is -1", "at least 0"},
        ErrorCase{"NoOptimizer", "sgd { learning_rate: 0.1 }", "",
                  "c.txt:6:1: optimizer: is missing", "sgd, momentum"},
        ErrorCase{"NoLearningRate", "learning_rate: 0.1", "",
                  "c.txt:6:13: optimizer.sgd.learning_rate: is missing",
                  "above 0"},
        ErrorCase{"ZeroLearningRate", "rate: 0.1", "rate: 0",
                  "c.txt:6:19: optimizer.sgd.learning_rate: value is 0; ",
                  "above 0 is required"},
        ErrorCase{"InfiniteLearningRate", "rate: 0.1", "rate: inf",
                  "c.txt:6:19: optimizer.sgd.learning_rate: value is inf", ""},
        ErrorCase{"LearningRateNotANumber", "rate: 0.1", "rate: nan",
                  "c.txt:6:19: optimizer.sgd.learning_rate: value is nan", ""},
        ErrorCase{"NegativeDecay", "rate: 0.1", "rate: 1 weight_decay: -0.1",
                  "c.txt:6:36: optimizer.sgd.weight_decay: value is -0.1",
                  "at least 0"},
        ErrorCase{"MomentumOfOne", "sgd {", "momentum { momentum: 1",
                  "c.txt:6:24: optimizer.momentum.momentum: value is 1; ",
                  "at least 0 and below 1"},
        ErrorCase{"NesterovMomentum", "sgd {", "nesterov { momentum: -0.1",
                  "c.txt:6:24: optimizer.nesterov.momentum: value is -0.1; ",
                  "at least 0 and below 1"},
        ErrorCase{"AdagradEpsilon", "sgd {", "adagrad { epsilon: 0",
                  "c.txt:6:23: optimizer.adagrad.epsilon: value is 0; ",
                  "above 0"},
        ErrorCase{"AdamBeta1", "sgd {", "adam { beta1: 1",
                  "c.txt:6:20: optimizer.adam.beta1: value is 1; ",
                  "at least 0 and below 1"},
        ErrorCase{"AdamwBeta2", "sgd {", "adamw { beta2: nan",
                  "c.txt:6:21: optimizer.adamw.beta2: value is nan; ",
                  "at least 0 and below 1"},
        ErrorCase{"AdamwEpsilon", "sgd {", "adamw { epsilon: -1",
                  "c.txt:6:21: optimizer.adamw.epsilon: value is -1; ",
                  "above 0"},
        ErrorCase{"NegativeWarmUp", "limits {",
                  "schedule { warmup_steps: -1 } limits {",
                  "c.txt:9:12: schedule.warmup_steps: value is -1; 0 to", ""},
        ErrorCase{"StepScheduleWithoutPeriod", "limits {",
                  "schedule { step {} } limits {",
                  "c.txt:9:12: schedule.step.every_epochs: is missing",
                  "above 0"},
        ErrorCase{"StepScheduleFactor", "limits {",
                  "schedule { step { every_epochs: 1 factor: 0 } } limits {",
                  "c.txt:9:35: schedule.step.factor: value is 0; ", "above 0"},
        ErrorCase{"CosineFactor", "limits {",
                  "schedule { cosine { final_factor: 2 } } limits {",
                  "c.txt:9:21: schedule.cosine.final_factor: value is 2; ",
                  "0 to 1"},
        ErrorCase{"NegativeStaleness", "staleness: 3", "staleness: -3",
                  "c.txt:7:14: sync.ssp.staleness: value is -3; 0 to 1000000 "
                  "is required",
                  "use asp"},
        ErrorCase{
            "EmptyBucket", "pull_ahead: false", "collective { bucket_kib: 0 }",
            "c.txt:7:42: sync.collective.bucket_kib: value is 0; 1 to", ""},
        ErrorCase{"AlgorithmOfNcclOnCpus", "pull_ahead: false",
                  "collective { algorithm: TREE }",
                  "c.txt:7:42: sync.collective.algorithm: value is TREE; ",
                  "only RING"},
        ErrorCase{"NoAlgorithm", "pull_ahead: false",
                  "collective { algorithm: ALGORITHM_UNSPECIFIED }",
                  "c.txt:7:42: sync.collective.algorithm: value is ALGORITHM_U",
                  "RING, TREE or ANY"},
        ErrorCase{"RoundedPushesWithoutGpus", "pull_ahead: false",
                  "push_type: BFLOAT16",
                  "c.txt:7:29: sync.push_type: value is BFLOAT16; ",
                  "FLOAT32 is required without device: CUDA"},
        ErrorCase{"NoPushType", "pull_ahead: false",
                  "push_type: PUSH_TYPE_UNSPECIFIED",
                  "c.txt:7:29: sync.push_type: value is PUSH_TYPE_U",
                  "FLOAT32, BFLOAT16 or FLOAT16"},
        ErrorCase{"AutoNegativeStaleness", "ssp { staleness: 3 }",
                  "auto { staleness: -1 }",
                  "c.txt:7:15: sync.auto.staleness: value is -1; 0 to", ""},
        ErrorCase{"AutoActsOnNoise", "ssp { staleness: 3 }",
                  "auto { even_below: 1.5 }",
                  "c.txt:7:8: sync.auto.straggler_above: value is 1.5; more "
                  "than sync.auto.even_below (1.5)",
                  "noise"},
        ErrorCase{
            "AutoNeverEven", "ssp { staleness: 3 }", "auto { even_below: 0.9 }",
            "c.txt:7:15: sync.auto.even_below: value is 0.9; ", "at least 1"},
        ErrorCase{"AutoNoStragglerBound", "ssp { staleness: 3 }",
                  "auto { straggler_above: inf }",
                  "c.txt:7:15: sync.auto.straggler_above: value is inf; ",
                  "a number"},
        ErrorCase{"AutoShortHold", "ssp { staleness: 3 }",
                  "auto { hold_ms: 99 }",
                  "c.txt:7:15: sync.auto.hold_ms: value is 99; 100 to", ""},
        ErrorCase{"PhaseWithoutMode", "ssp { staleness: 3 }",
                  "phase { until_epoch: 1 } phase { bsp {} }",
                  "c.txt:7:8: sync.phase[0]: has no mode; ", "allreduce"},
        ErrorCase{"PhaseNegativeStaleness", "ssp { staleness: 3 }",
                  "phase { ssp { staleness: -1 } }",
                  "c.txt:7:22: sync.phase[0].ssp.staleness: value is -1; 0 to",
                  "use asp"},
        ErrorCase{"DsspNegative", "ssp { staleness: 3 }",
                  "dssp { min_staleness: -1 }",
                  "c.txt:7:15: sync.dssp.min_staleness: value is -1; 0 to",
                  "use asp"},
        ErrorCase{"DsspBoundsCrossed", "ssp { staleness: 3 }",
                  "dssp { max_staleness: 2 }",
                  "c.txt:7:15: sync.dssp.max_staleness: value is 2; at least "
                  "the smallest bound (3)",
                  "required"},
        ErrorCase{"PhaseDsspBoundsCrossed", "ssp { staleness: 3 }",
                  "phase { dssp { min_staleness: 16 } }",
                  "c.txt:7:16: sync.phase[0].dssp.max_staleness: value is 15; "
                  "at least the smallest bound (16)",
                  "required"},
        ErrorCase{"NoBackups", "ssp { staleness: 3 }", "backup { workers: 0 }",
                  "c.txt:7:17: sync.backup.workers: value is 0; 1 to 1",
                  "there are 2 workers"},
        ErrorCase{
            "AllWorkersAreBackups", "ssp { staleness: 3 }",
            "phase { backup { workers: 2 } }",
            "c.txt:7:25: sync.phase[0].backup.workers: value is 2; 1 to 1",
            "there are 2 workers"},
        ErrorCase{"PhaseWithoutEnd", "ssp { staleness: 3 }",
                  "phase { bsp {} } phase { asp {} }",
                  "c.txt:7:8: sync.phase[0].until_epoch: is missing; ",
                  "only the last phase"},
        ErrorCase{"LastPhaseWithEnd", "ssp { staleness: 3 }",
                  "phase { bsp {} until_epoch: 2 }",
                  "c.txt:7:23: sync.phase[0].until_epoch: value is 2; ",
                  "leave it out or add a phase"},
        ErrorCase{"PhaseUntilZero", "ssp { staleness: 3 }",
                  "phase { bsp {} until_epoch: 0 } phase { asp {} }",
                  "c.txt:7:23: sync.phase[0].until_epoch: value is 0; ",
                  "above 0"},
        ErrorCase{"PhasesOutOfOrder", "ssp { staleness: 3 }",
                  "phase { bsp {} until_epoch: 2 } phase { asp {} until_epoch: "
                  "2 } phase { bsp {} }",
                  "c.txt:7:55: sync.phase[1].until_epoch: value is 2; ",
                  "above 2, where the phase before ends"},
        ErrorCase{"PhasesAndAMode", "pull_ahead: false", "phase { asp {} }",
                  "c.txt:7:29: sync.phase[0]: there is sync.ssp, too; ",
                  "--mode replaces phases"},
        ErrorCase{"PhaseOfThePolicy", "ssp { staleness: 3 }",
                  "phase { auto {} }",
                  "c.txt:7:16: sync.phase[0].auto: unknown field 'auto'",
                  "allreduce"},
        ErrorCase{"GpuOfACpuWorker", "count: 2", "gpu: 0",
                  "c.txt:3:28: worker[0].gpu: ", "device: CUDA"},
        ErrorCase{"TooFewGpus", "count: 2", "count: 2 device: CUDA gpu: 0",
                  "c.txt:3:50: worker[0].gpu: lists 1; ",
                  "one for each of the 2 processes"},
        ErrorCase{"NegativeGpu", "count: 2", "device: CUDA gpu: -1",
                  "c.txt:3:41: worker[0].gpu[0]: value is -1; 0 to", ""},
        ErrorCase{"OneGpuTwice", "count: 2",
                  "count: 2 device: CUDA gpu: [1, 1]",
                  "c.txt:3:50: worker[0].gpu[1]: GPU 1 of 127.0.0.1 is already "
                  "taken by worker[0].gpu[0]",
                  "each worker needs its own"},
        ErrorCase{"GpuThatAnotherGroupCounts", "count: 2",
                  "count: 2 device: CUDA } worker { host: \"localhost\" "
                  "device: CUDA gpu: 0",
                  "c.txt:3:92: worker[1].gpu[0]: GPU 0 of localhost is already "
                  "taken by worker[0]",
                  "list different ones in the field gpu"},
        ErrorCase{"NoEpochs", "epochs: 2", "epochs: 0",
                  "c.txt:8:9: train.epochs: value is 0; ",
                  "above 0 is required"},
        ErrorCase{"NegativeSeed", "epochs: 2", "seed: -1",
                  "c.txt:8:9: train.seed: value is -1; ", "at least 0"},
        ErrorCase{"NoSteps", "epochs: 2", "max_steps: 0",
                  "c.txt:8:9: train.max_steps: value is 0; 1 to", "leave it"},
        ErrorCase{"NeverEvaluates", "epochs: 2", "eval_every_epochs: 0",
                  "c.txt:8:9: train.eval_every_epochs: value is 0; ",
                  "above 0 is required"},
        ErrorCase{"StopsAtNoAccuracy", "epochs: 2", "stop { test_accuracy: 0 }",
                  "c.txt:8:16: train.stop.test_accuracy: value is 0; ",
                  "above 0 and at most 1"},
        ErrorCase{"StopsAtAPercentage", "epochs: 2",
                  "stop { test_accuracy: 97 }",
                  "c.txt:8:16: train.stop.test_accuracy: value is 97; ",
                  "0.97 is 97 %"},
        ErrorCase{"StopsAtNoLoss", "epochs: 2", "stop { test_loss: 0 }",
                  "c.txt:8:16: train.stop.test_loss: value is 0; ",
                  "above 0 is required"},
        ErrorCase{"StopsAtOnce", "epochs: 2", "stop { wall_seconds: -1 }",
                  "c.txt:8:16: train.stop.wall_seconds: value is -1; ",
                  "above 0 is required"},
        ErrorCase{"NoPolicyForNans", "epochs: 2",
                  "nonfinite: NONFINITE_UNSPECIFIED",
                  "c.txt:8:9: train.nonfinite: value is NONFINITE_UNSPECIFIED",
                  "STOP or SKIP is required"},
        ErrorCase{"BoundOfNothing", "epochs: 2", "gradient_bound { }",
                  "c.txt:8:9: train.gradient_bound: has neither rms nor "
                  "times_running_rms",
                  "leave the bound out"},
        ErrorCase{"BoundOfZero", "epochs: 2", "gradient_bound { rms: 0 }",
                  "c.txt:8:26: train.gradient_bound.rms: value is 0; above 0",
                  "root mean square"},
        ErrorCase{"BoundThatIsNoNumber", "epochs: 2",
                  "gradient_bound { rms: nan }",
                  "c.txt:8:26: train.gradient_bound.rms: value is nan; above 0",
                  "largest float"},
        ErrorCase{"BoundBelowTheRunningOne", "epochs: 2",
                  "gradient_bound { times_running_rms: 1 }",
                  "c.txt:8:26: train.gradient_bound.times_running_rms: value "
                  "is 1; above 1",
                  "20 leaves room"},
        ErrorCase{
            "BoundWithoutAWarmUp", "epochs: 2",
            "gradient_bound { times_running_rms: 9 warm_up_gradients: 0 }",
            "c.txt:8:47: train.gradient_bound.warm_up_gradients: value "
            "is 0; 1 to",
            ""},
        ErrorCase{"WarmUpOfNothing", "epochs: 2",
                  "gradient_bound { rms: 1 warm_up_gradients: 5 }",
                  "c.txt:8:33: train.gradient_bound.warm_up_gradients: is set "
                  "without times_running_rms",
                  "leave it out"},
        ErrorCase{"NoPolicyForTheBound", "epochs: 2",
                  "gradient_bound { rms: 1 policy: POLICY_UNSPECIFIED }",
                  "c.txt:8:33: train.gradient_bound.policy: value is "
                  "POLICY_UNSPECIFIED",
                  "STOP or SKIP is required"},
        ErrorCase{"ShortLease", "{ }", "{ lease_ms: 199 }",
                  "c.txt:9:10: limits.lease_ms: value is 199; 200 to", ""},
        ErrorCase{"ShortStart", "{ }", "{ start_timeout_ms: 0 }",
                  "c.txt:9:10: limits.start_timeout_ms: value is 0; 1000 to",
                  ""},
        ErrorCase{"WaitShorterThanLease", "{ }", "{ wait_timeout_ms: 5000 }",
                  "c.txt:9:10: limits.wait_timeout_ms: value is 5000; more "
                  "than limits.lease_ms (5000)",
                  "dead process"},
        ErrorCase{"StallShorterThanLease", "{ }", "{ stall_timeout_ms: 4999 }",
                  "c.txt:9:10: limits.stall_timeout_ms: value is 4999; 5000 to",
                  "at least limits.lease_ms"},
        ErrorCase{"StallAsLongAsAWait", "{ }",
                  "{ wait_timeout_ms: 30000 stall_timeout_ms: 30000 }",
                  "c.txt:9:33: limits.stall_timeout_ms: value is 30000; less "
                  "than limits.wait_timeout_ms (30000)",
                  "leave it out for a value that fits"},
        ErrorCase{"GivesTheCoordinatorUpTooSoon", "{ }",
                  "{ coordinator_timeout_ms: 9999 }",
                  "c.txt:9:10: limits.coordinator_timeout_ms: value is 9999; "
                  "10000 to",
                  "two times limits.lease_ms"},
        ErrorCase{"SavesBackwards", "{ }", "{ save_timeout_ms: -1 }",
                  "c.txt:9:10: limits.save_timeout_ms: value is -1; 0 to", ""},
        ErrorCase{"EmptyShard", "{ }", "{ shard_kib: 0 }",
                  "c.txt:9:10: limits.shard_kib: value is 0; 1 to", ""},
        ErrorCase{"LongSpin", "{ }", "{ spin_us: 1001 }",
                  "c.txt:9:10: limits.spin_us: value is 1001; 0 to 1000", ""},
        ErrorCase{"EmptyMessage", "{ }", "{ message_kib: 0 }",
                  "c.txt:9:10: limits.message_kib: value is 0; 1 to", ""},
        ErrorCase{"WindowSmallerThanMessage", "{ }",
                  "{ message_kib: 512 window_kib: 300 }",
                  "c.txt:9:27: limits.window_kib: value is 300; ",
                  "limits.message_kib (512)"},
        ErrorCase{"WindowSmallerThanShard", "{ }", "{ shard_kib: 8192 }",
                  "c.txt:9:1: limits.window_kib: value is 4096; ",
                  "limits.shard_kib (8192)"},
        ErrorCase{"UnspecifiedTransport", "{ }",
                  "{ transport: TRANSPORT_UNSPECIFIED }",
                  "c.txt:9:10: limits.transport: ",
                  "one of AUTO, TCP, IPC, SHM is required"}),
    CaseName);

// A bad field of the conditions of the only worker block.
ErrorCase ConditionsCase(const std::string& name, const std::string& fields,
                         const std::string& problem,
                         const std::string& contains) {
  return {name, "count: 2", absl::StrCat("conditions { ", fields, " }"),
          absl::StrCat("c.txt:3:", problem), contains};
}

INSTANTIATE_TEST_SUITE_P(
    Conditions, ConfigErrorTest,
    ::testing::Values(
        ConditionsCase("NegativeStep", "step_ms: -1",
                       "41: worker[0].conditions.step_ms: value is -1; ",
                       "0 to 3600000 is required"),
        ConditionsCase("EndlessStep", "step_ms: nan",
                       "41: worker[0].conditions.step_ms: value is nan; ",
                       "0 to 3600000 is required"),
        ConditionsCase("NoDistribution",
                       "random { distribution: DISTRIBUTION_UNSPECIFIED }",
                       "50: worker[0].conditions.random.distribution: ",
                       "UNIFORM, EXPONENTIAL or PARETO"),
        ConditionsCase("NoRandomSlowdown", "random { mean: 0 }",
                       "50: worker[0].conditions.random.mean: value is 0; ",
                       "above 0 and at most 1000"),
        ConditionsCase("NoFactor", "periodic { slow_ms: 1 fast_ms: 1 }",
                       "41: worker[0].conditions.periodic.factor: is missing",
                       "factor: 4"),
        ConditionsCase("FasterThanItself",
                       "periodic { factor: 0.5 slow_ms: 1 fast_ms: 1 }",
                       "52: worker[0].conditions.periodic.factor: value is "
                       "0.5; 1 to 1000",
                       "own speed"),
        ConditionsCase("NoSlowTime", "periodic { factor: 2 fast_ms: 1 }",
                       "41: worker[0].conditions.periodic.slow_ms: is missing",
                       "slow_ms: 2000"),
        ConditionsCase("NeverSlow",
                       "periodic { factor: 2 slow_ms: 0 fast_ms: 1 }",
                       "62: worker[0].conditions.periodic.slow_ms: value is 0",
                       "above 0"),
        ConditionsCase("NoFastTime", "periodic { factor: 2 slow_ms: 1 }",
                       "41: worker[0].conditions.periodic.fast_ms: is missing",
                       "fast_ms: 8000"),
        ConditionsCase(
            "NegativeOffset",
            "periodic { factor: 2 slow_ms: 1 fast_ms: 0 offset_ms: -1 }",
            "84: worker[0].conditions.periodic.offset_ms: value is -1",
            "at least 0"),
        ConditionsCase("PauseBeforeNothing", "pause { ms: 5 }",
                       "41: worker[0].conditions.pause[0].step: is missing",
                       "step: 300"),
        ConditionsCase("PauseBeforeTheFirst", "pause { step: -1 ms: 5 }",
                       "49: worker[0].conditions.pause[0].step: value is -1",
                       "first step has the number 0"),
        ConditionsCase("PauseOfNoLength", "pause { step: 3 }",
                       "41: worker[0].conditions.pause[0].ms: is missing",
                       "ms: 5000"),
        ConditionsCase("PauseThatOthersDoNotWaitFor",
                       "pause { step: 3 ms: 120000 }",
                       "57: worker[0].conditions.pause[0].ms: value is 120000",
                       "less than limits.stall_timeout_ms (60000)"),
        ConditionsCase(
            "NanBeforeTheFirstStep", "nonfinite_at_step: -1",
            "41: worker[0].conditions.nonfinite_at_step[0]: value is -1",
            "0 to"),
        ConditionsCase(
            "ScaledBeforeTheFirstStep", "scaled_by: 2 scaled_at_step: -1",
            "54: worker[0].conditions.scaled_at_step[0]: value is -1", "0 to"),
        ConditionsCase("ScaledByNothing", "scaled_at_step: 4",
                       "28: worker[0].conditions.scaled_by: is missing",
                       "scaled_by: 1000"),
        ConditionsCase("ScaledByZero", "scaled_at_step: 4 scaled_by: 0",
                       "59: worker[0].conditions.scaled_by: value is 0; ",
                       "not 0"),
        ConditionsCase("ScaledInNoStep", "scaled_by: 3",
                       "41: worker[0].conditions.scaled_by: is set without "
                       "scaled_at_step",
                       "leave it out"),
        ConditionsCase("LongLink", "link { latency_ms: 1001 }",
                       "48: worker[0].conditions.link.latency_ms: value is "
                       "1001; ",
                       "0 to 1000 is required"),
        ConditionsCase("LinkThatPassesNothing", "link { bandwidth_mbit: 0 }",
                       "48: worker[0].conditions.link.bandwidth_mbit: value is "
                       "0; ",
                       "leave it out for no bound"),
        ConditionsCase("LinkOfNothing", "link { }",
                       "41: worker[0].conditions.link: has neither",
                       "latency_ms nor bandwidth_mbit")),
    CaseName);

TEST(ConfigConditionsTest, LinksOfWorkersThatUseNcclAreRefused) {
  const std::string text =
      With("count: 2", "device: CUDA conditions { link { latency_ms: 1 } }");
  EXPECT_THAT(Errors(text), IsEmpty()) << "over servers they are possible";
  EXPECT_THAT(Errors(text, {.mode = "allreduce", .sets = {}}),
              ElementsAre(HasSubstr("worker[0].conditions.link: cannot be: "
                                    "these workers all-reduce by NCCL")));
  EXPECT_THAT(Errors(text, {.mode = "auto", .sets = {}}), SizeIs(1));
}

TEST(ConfigConditionsTest, NansAreForWorkersOnCpus) {
  EXPECT_THAT(
      Errors(
          With("count: 2", "device: CUDA conditions { nonfinite_at_step: 1 }")),
      ElementsAre(HasSubstr("worker[0].conditions.nonfinite_at_step: is set "
                            "for workers on GPUs")));
}

TEST(ConfigConditionsTest, ScaledGradientsAreOfWorkersOnCpus) {
  EXPECT_THAT(
      Errors(
          With("count: 2",
               "device: CUDA conditions { scaled_at_step: 1 scaled_by: 9 }")),
      ElementsAre(HasSubstr("worker[0].conditions.scaled_at_step: is set for "
                            "workers on GPUs")));
}

TEST(ConfigGradientBoundTest, TheWarmUpHasADefault) {
  const config::GradientBound bound =
      ParseOrDie(With("epochs: 2", "gradient_bound { times_running_rms: 20 }"))
          .train()
          .gradient_bound();
  EXPECT_EQ(bound.warm_up_gradients(), 100);
  EXPECT_EQ(bound.policy(), config::GradientBound::STOP);
  EXPECT_FALSE(ParseOrDie(With("epochs: 2", "gradient_bound { rms: 1 }"))
                   .train()
                   .gradient_bound()
                   .has_warm_up_gradients());
}

TEST(ConfigGradientBoundTest, WhereNoServerLooksItIsRefused) {
  const std::string text =
      With("epochs: 2", "gradient_bound { rms: 1 times_running_rms: 20 }");
  for (const char* const mode : {"bsp", "ssp:2", "dssp:1:4", "asp", "backup:1"})
    EXPECT_THAT(Errors(text, {.mode = mode, .sets = {}}), IsEmpty()) << mode;
  for (const char* const mode : {"allreduce", "auto"}) {
    EXPECT_THAT(Errors(text, {.mode = mode, .sets = {}}),
                ElementsAre(HasSubstr("train.gradient_bound: cannot hold: "
                                      "servers look at gradients, and steps by "
                                      "all-reduce pass them by")))
        << mode;
  }
}

TEST(ConfigConditionsTest, EachProcessOfTheBlockHasThem) {
  const std::vector<WorkerProcess> workers = WorkerProcesses(
      ParseOrDie(With("count: 2 }",
                      "count: 2 conditions { step_ms: 7 } } worker { host: "
                      "\"127.0.0.1\" }")));
  ASSERT_THAT(workers, SizeIs(3));
  EXPECT_EQ(workers[0].conditions.step_ms(), 7);
  EXPECT_EQ(workers[1].conditions.step_ms(), 7);
  EXPECT_EQ(workers[2].conditions.step_ms(), 0);
}

// A bad field of a rebalance block in the last line.
ErrorCase RebalanceCase(const std::string& name, const std::string& fields,
                        const std::string& problem,
                        const std::string& contains) {
  return {name, "limits { }", absl::StrCat("rebalance { ", fields, " }"),
          absl::StrCat("c.txt:9:13: rebalance.", problem), contains};
}

INSTANTIATE_TEST_SUITE_P(
    Rebalance, ConfigErrorTest,
    ::testing::Values(
        RebalanceCase("Mode", "mode: MODE_UNSPECIFIED",
                      "mode: value is MODE_UNSPECIFIED; ",
                      "OFF, MANUAL or AUTO"),
        RebalanceCase("ShortInterval", "interval_ms: 99",
                      "interval_ms: value is 99; 100 to 3600000 is", "MANUAL"),
        RebalanceCase("LongInterval", "interval_ms: 3600001",
                      "interval_ms: value is 3600001; 100 to 3600000 is", ""),
        RebalanceCase("ThresholdOfOne", "threshold: 1 target: 1",
                      "threshold: value is 1; ", "at least 1.01"),
        RebalanceCase("EndlessThreshold", "threshold: inf",
                      "threshold: value is inf; ", "at least 1.01"),
        RebalanceCase("TargetBelowTheMean", "target: 0.99",
                      "target: value is 0.99; ", "at least 1 "),
        RebalanceCase("NoTarget", "target: nan", "target: value is nan; ",
                      "at least 1 "),
        RebalanceCase("TargetAtTheThreshold", "target: 1.2",
                      "target: value is 1.2; ",
                      "less than rebalance.threshold (1.2)"),
        RebalanceCase("NegativeUtilisation", "min_utilisation: -0.1",
                      "min_utilisation: value is -0.1; ", "0 to 1"),
        RebalanceCase("UtilisationAboveOne", "min_utilisation: 1.1",
                      "min_utilisation: value is 1.1; ", "0 to 1"),
        RebalanceCase("NegativeRest", "rest_ms: -1",
                      "rest_ms: value is -1; 0 to 86400000 is", ""),
        RebalanceCase("NoBudget", "budget_mib: 0",
                      "budget_mib: value is 0; 1 to", ""),
        RebalanceCase("NoMoves", "moves_max: 0", "moves_max: value is 0; 1 to",
                      ""),
        RebalanceCase("NoneAtATime", "concurrent_moves: 0",
                      "concurrent_moves: value is 0; 1 to 64 is", ""),
        RebalanceCase("TooManyAtATime", "concurrent_moves: 65",
                      "concurrent_moves: value is 65; 1 to 64 is", "")),
    CaseName);

TEST(ConfigRebalanceTest, TheEdgesOfTheRangesPass) {
  for (const char* const fields :
       {"mode: OFF interval_ms: 100 threshold: 1.01 target: 1 rest_ms: 0",
        "mode: AUTO interval_ms: 3600000 target: 1.19 rest_ms: 86400000",
        "min_utilisation: 0 budget_mib: 1 moves_max: 1 concurrent_moves: 1",
        "min_utilisation: 1 concurrent_moves: 64"}) {
    EXPECT_THAT(Errors(absl::StrCat(kMinimal, "rebalance { ", fields, " }\n")),
                ElementsAre())
        << fields;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Replicas, ConfigErrorTest,
    ::testing::Values(
        ErrorCase{"Negative", "limits { }", "replicas: -1",
                  "c.txt:9:1: replicas: value is -1; 0 to 2 is required", ""},
        ErrorCase{"TooMany", "limits { }",
                  "server { host: \"127.0.0.1\" count: 3 } replicas: 3",
                  "c.txt:9:39: replicas: value is 3; 0 to 2 is required", ""},
        ErrorCase{"AsManyAsServers", "limits { }", "replicas: 1",
                  "c.txt:9:1: replicas: value is 1; less than the number of "
                  "servers (1) is required",
                  "a server of its own"}),
    CaseName);

TEST(ConfigReplicasTest, EachCopyNeedsAServerOfItsOwn) {
  for (int replicas = 0; replicas <= 2; ++replicas) {
    EXPECT_THAT(
        Errors(absl::StrCat(kMinimal, "server { host: \"127.0.0.1\" count: ",
                            std::max(replicas, 1), " }\nreplicas: ", replicas)),
        ElementsAre());
  }
}

// A bad field of an etcd block in the last line.
ErrorCase EtcdCase(const std::string& name, const std::string& fields,
                   const std::string& problem, const std::string& contains) {
  return {name, "limits { }",
          absl::StrCat("coordinator { etcd { ", fields, " } }"),
          absl::StrCat("c.txt:9:", problem), contains};
}

INSTANTIATE_TEST_SUITE_P(
    Etcd, ConfigErrorTest,
    ::testing::Values(
        EtcdCase("NoEndpoint", "prefix: '/a'",
                 "15: coordinator.etcd.endpoint: is missing; ", "2379"),
        EtcdCase("NoScheme", "endpoint: '127.0.0.1:2379'",
                 "22: coordinator.etcd.endpoint[0]: value is ",
                 "https:// or http://, a host, a colon and a port"),
        EtcdCase("Ipv6WithoutBrackets", "endpoint: 'http://::1:2379'",
                 "22: coordinator.etcd.endpoint[0]: value is ",
                 "\"https://[fd00::5]:2379\""),
        EtcdCase("HttpsOfAnybody", "endpoint: 'https://10.0.0.5:2379'",
                 "15: coordinator.etcd.ca: is missing; ", "/etc/etcd/ca.pem"),
        EtcdCase("FilesWithoutHttps",
                 "endpoint: 'http://127.0.0.1:1' ca: '/ca.pem'",
                 "53: coordinator.etcd.ca: value is ", "for https://"),
        EtcdCase("RelativePath", "endpoint: 'https://127.0.0.1:1' ca: 'ca.pem'",
                 "54: coordinator.etcd.ca: value is ", "an absolute path"),
        EtcdCase("CertificateWithoutItsKey",
                 "endpoint: 'https://a:1' ca: '/c' certificate: '/d'",
                 "15: coordinator.etcd.private_key: is missing; ",
                 "--client-cert-auth"),
        EtcdCase("KeyWithoutItsCertificate",
                 "endpoint: 'https://a:1' ca: '/c' private_key: '/d'",
                 "15: coordinator.etcd.certificate: is missing; ",
                 "--client-cert-auth"),
        EtcdCase("NoPort",
                 "endpoint: 'http://127.0.0.1:1' endpoint: 'http://127.0.0.1'",
                 "53: coordinator.etcd.endpoint[1]: value is ", "a port"),
        EtcdCase("PortTooLarge", "endpoint: 'http://127.0.0.1:65536'",
                 "22: coordinator.etcd.endpoint[0]: value is ", "to 65535"),
        EtcdCase("PortThatIsNoNumber", "endpoint: 'http://127.0.0.1:+1'",
                 "22: coordinator.etcd.endpoint[0]: value is ", "to 65535"),
        EtcdCase("Path", "endpoint: 'http://127.0.0.1:2379/v3'",
                 "22: coordinator.etcd.endpoint[0]: value is ", "a port"),
        EtcdCase("User", "endpoint: 'http://a@b:2379'",
                 "22: coordinator.etcd.endpoint[0]: the host's value is ",
                 "allowed in a host name"),
        EtcdCase("OnANetwork", "endpoint: 'http://10.0.0.5:2379'",
                 "22: coordinator.etcd.endpoint[0]: value is ",
                 "write https:// with coordinator { etcd { ca } }, or set "
                 "insecure: true"),
        EtcdCase("PrefixWithoutASlash",
                 "endpoint: 'http://127.0.0.1:1' prefix: 'a'",
                 "53: coordinator.etcd.prefix: value is ",
                 "as in \"/slackline/mnist\""),
        EtcdCase("PrefixThatEndsWithASlash",
                 "endpoint: 'http://127.0.0.1:1' prefix: '/a/'",
                 "53: coordinator.etcd.prefix: value is ",
                 "no slash at the end"),
        EtcdCase("UserWithoutAPassword",
                 "endpoint: 'http://127.0.0.1:1' user: 'job'",
                 "15: coordinator.etcd.password_file: is missing; ",
                 "etcdctl auth enable"),
        EtcdCase("PasswordWithoutAUser",
                 "endpoint: 'http://127.0.0.1:1' password_file: '/p'",
                 "15: coordinator.etcd.user: is missing; ",
                 "etcdctl auth enable"),
        EtcdCase("UserWithASpace",
                 "endpoint: 'http://127.0.0.1:1' password_file: '/p' user: 'a "
                 "b'",
                 "73: coordinator.etcd.user: value is ", "without spaces"),
        EtcdCase("RelativePasswordFile",
                 "endpoint: 'http://127.0.0.1:1' user: 'a' password_file: 'p'",
                 "63: coordinator.etcd.password_file: value is ",
                 "an absolute path"),
        EtcdCase("PrefixWithASpace",
                 "endpoint: 'http://127.0.0.1:1' prefix: '/a b'",
                 "53: coordinator.etcd.prefix: value is ", "letters, digits")),
    CaseName);

// A bad field of a track block in the last line.
ErrorCase TrackCase(const std::string& name, const std::string& fields,
                    const std::string& problem, const std::string& contains) {
  return {name, "limits { }", absl::StrCat("track { ", fields, " }"),
          absl::StrCat("c.txt:9:", problem), contains};
}

INSTANTIATE_TEST_SUITE_P(
    Track, ConfigErrorTest,
    ::testing::Values(
        TrackCase("NoTracker", "project: 'a' model: true",
                  "1: track: names no tracker; ", "wandb {}"),
        TrackCase("EmptyProject", "project: '' tensorboard {}",
                  "9: track.project: is empty; ", "leave it out"),
        TrackCase("EmptyFolder", "wandb { folder: '' }",
                  "17: track.wandb.folder: is empty; ", "leave it out"),
        TrackCase("TwoLines", "tensorboard { folder: 'a\\nb' }",
                  "23: track.tensorboard.folder: has a control character; ",
                  "in one line"),
        TrackCase("Password", "mlflow { place: 'https://me:pw1@host:1' }",
                  "18: track.mlflow.place: has an '@', a password or a token ",
                  "MLFLOW_TRACKING_PASSWORD")),
    CaseName);

TEST(ConfigTrackTest, AnAddressWithoutASecretAndAnyPathAreTaken) {
  for (const char* const place :
       {"https://host:5000", "/a:b@c", "a@b?password=x", "mlruns",
        "sqlite:////home/me/runs.db", "https://host/password=x?tokens=3"}) {
    const config::ClusterConfig config = ParseOrDie(
        absl::StrCat(kMinimal, "track { mlflow { place: '", place, "' } }"));
    EXPECT_EQ(config.track().mlflow().place(), place);
  }
}

TEST(AddressSecretTest, AnAtAPasswordOrATokenMayBeOne) {
  for (const char* const address :
       {"https://me:hidden@host", "https://hidden@host:5000/x",
        "https://me:p/ss@host", "mlflow:https://u:p@ss@host",
        "https://u:p/s?s@host", "mysql://host/db?password=hidden",
        "https://host/?x=1&PassWord=hidden", "https://host?access_token=hidden",
        "sqlite:////home/me@here/runs.db"}) {
    EXPECT_TRUE(MayHaveSecret(address)) << address;
  }
}

TEST(ConfigTrackTest, APasswordIsInNoError) {
  const absl::StatusOr<config::ClusterConfig> config = ParseJobConfig(
      absl::StrCat(kMinimal,
                   "track { mlflow { place: 'https://me:hidden@host' } }"),
      "c.txt");
  ASSERT_FALSE(config.ok());
  EXPECT_EQ(config.status().message().find("hidden"), std::string::npos)
      << config.status();
}

TEST(ConfigEtcdTest, APasswordGoesToNoOtherHostInTheClear) {
  const auto parse = [](const std::string& endpoint) {
    return ParseJobConfig(
               absl::StrCat(
                   kMinimal, "insecure: true coordinator { etcd { endpoint: '",
                   endpoint, "' ca: '/c' user: 'job' password_file: '/p' } }"),
               "c.txt")
        .status();
  };
  EXPECT_EQ(parse("https://10.0.0.5:2379"), absl::OkStatus());
  EXPECT_NE(parse("http://10.0.0.5:2379")
                .message()
                .find("with a user https:// is required to other hosts"),
            std::string::npos)
      << parse("http://10.0.0.5:2379");
  EXPECT_EQ(ParseJobConfig(absl::StrCat(kMinimal,
                                        "coordinator { etcd { endpoint: "
                                        "'http://127.0.0.1:2379' user: 'job' "
                                        "password_file: '/p' } }"),
                           "c.txt")
                .status(),
            absl::OkStatus());
}

TEST(ConfigEtcdTest, ThePrefixIsTheJobsUnlessGiven) {
  const auto prefix = [](const std::string& fields) {
    const config::Coordinator coordinator =
        ParseOrDie(absl::StrCat(kMinimal, "coordinator { ", fields, " }"))
            .coordinator();
    return coordinator.has_etcd() ? coordinator.etcd().prefix() : "none";
  };
  EXPECT_EQ(prefix(""), "none");
  EXPECT_EQ(prefix("etcd { endpoint: 'http://localhost:2379' }"),
            "/slackline/test");
  EXPECT_EQ(prefix("etcd { endpoint: 'http://localhost:2379' prefix: '/x/y' }"),
            "/x/y");
  ParseOrDie(absl::StrCat(
      kMinimal,
      "insecure: true coordinator { etcd { endpoint: "
      "'http://etcd-0.etcd:1' endpoint: 'http://10.0.0.5:65535' } }"));
  ParseOrDie(absl::StrCat(
      kMinimal,
      "coordinator { etcd { endpoint: 'https://10.0.0.5:2379' ca: '/ca' "
      "certificate: '/c' private_key: '/k' } }"));
  EXPECT_THAT(Errors(absl::StrCat(
                  absl::StrReplaceAll(kMinimal, {{"job: \"test\"\n", ""}}),
                  "coordinator { etcd { endpoint: 'http://localhost:1' } }")),
              ElementsAre(HasSubstr("job: is missing")));
}

TEST(CoordinatorEndpointsTest, AnyServerMayHaveItWhereOneTakesOver) {
  const auto endpoints = [](const std::string& text) {
    return CoordinatorEndpoints(ParseOrDie(text));
  };
  const std::string servers = With(
      "server { host: \"127.0.0.1\" }",
      "server { host: '127.0.0.1' count: 2 } server { host: '127.0.0.2' }");
  const std::string etcd =
      "coordinator { port: 77 etcd { endpoint: 'http://localhost:2379' } }";
  EXPECT_THAT(endpoints(servers), ElementsAre("tcp://127.0.0.1:7700"));
  EXPECT_THAT(endpoints(servers + etcd), ElementsAre("tcp://127.0.0.1:77"));
  EXPECT_THAT(endpoints(servers + "replicas: 1 " + etcd),
              ElementsAre("tcp://127.0.0.1:77", "tcp://127.0.0.2:77"));
  const std::string of_its_own =
      absl::StrReplaceAll(etcd, {{"port: 77", "port: 77 host: '127.0.0.9'"}});
  EXPECT_THAT(endpoints(servers + "replicas: 1 " + of_its_own),
              ElementsAre("tcp://127.0.0.9:77", "tcp://127.0.0.1:77",
                          "tcp://127.0.0.2:77"));
  EXPECT_THAT(
      Errors(absl::StrReplaceAll(
          servers + "replicas: 1 " + etcd,
          {{"host: '127.0.0.2'", "host: '127.0.0.2' port: 77"}})),
      ElementsAre(AllOf(HasSubstr("server[1].port: address 127.0.0.2:77 is "
                                  "already taken by coordinator.port"))));
}

// A bad field of a checkpoint block in the last line.
ErrorCase CheckpointCase(const std::string& name, const std::string& fields,
                         const std::string& problem,
                         const std::string& contains) {
  return {name, "limits { }", absl::StrCat("checkpoint { ", fields, " }"),
          absl::StrCat("c.txt:9:14: checkpoint.", problem), contains};
}

INSTANTIATE_TEST_SUITE_P(
    Checkpoint, ConfigErrorTest,
    ::testing::Values(
        CheckpointCase("NoSteps", "every_steps: 0",
                       "every_steps: value is 0; 1 to 1099511627776 is",
                       "leave it out"),
        CheckpointCase("TooManySteps", "every_steps: 1099511627777",
                       "every_steps: value is 1099511627777; ", ""),
        CheckpointCase("NoEpochs", "every_epochs: 0",
                       "every_epochs: value is 0; above 0 is", "leave it out"),
        CheckpointCase("EpochsThatAreNoNumber", "every_epochs: nan",
                       "every_epochs: value is nan; above 0 is", ""),
        CheckpointCase("NoSeconds", "every_seconds: -1",
                       "every_seconds: value is -1; above 0 is",
                       "leave it out"),
        CheckpointCase("EndlessSeconds", "every_seconds: inf",
                       "every_seconds: value is inf; above 0 is", ""),
        CheckpointCase("NoneKept", "keep: 0", "keep: value is 0; 1 to 1000 is",
                       ""),
        CheckpointCase("TooManyKept", "keep: 1001",
                       "keep: value is 1001; 1 to 1000 is", ""),
        CheckpointCase("NoFolder", "folder: ''", "folder: is empty; ",
                       "leave it out for checkpoints"),
        CheckpointCase("NoLoss", "on_server_loss: LOSS_UNSPECIFIED",
                       "on_server_loss: value is LOSS_UNSPECIFIED; ",
                       "FAIL or RESTORE"),
        CheckpointCase("NoMeasure", "best_by: MEASURE_UNSPECIFIED",
                       "best_by: value is MEASURE_UNSPECIFIED; ",
                       "ACCURACY or LOSS")),
    CaseName);

TEST(ConfigSlurmTest, WhatABatchScriptCannotSayIsRefusedWithItsField) {
  const auto errors = [](const std::string& fields) {
    return absl::StrJoin(
        Errors(absl::StrCat(kMinimal, "launch { slurm { ", fields, " } }\n")),
        "\n");
  };
  EXPECT_EQ(errors("partition: 'gpu' time: '2:00:00' nodes: 4096 option: "
                   "'--comment=two words' warning_seconds: 65535"),
            "");
  EXPECT_THAT(errors("partition: ''"), HasSubstr("launch.slurm.partition: "));
  EXPECT_THAT(errors("time: '1\\n#SBATCH --uid=0'"),
              HasSubstr("launch.slurm.time: value is "));
  EXPECT_THAT(errors("option: 'exclusive'"),
              HasSubstr("launch.slurm.option: value is 'exclusive'; an option "
                        "with its dashes"));
  EXPECT_THAT(errors("srun_option: '-x\\n'"),
              HasSubstr("launch.slurm.srun_option: value is "));
  EXPECT_THAT(errors("nodes: 0"),
              HasSubstr("launch.slurm.nodes: value is 0; 1 to 4096"));
  EXPECT_THAT(
      errors("warning_seconds: 0"),
      HasSubstr("launch.slurm.warning_seconds: value is 0; 1 to 65535"));
  EXPECT_THAT(errors("requeue: true"),
              AllOf(HasSubstr("launch.slurm.requeue: value is true"),
                    HasSubstr("checkpoint { every_epochs: 1 }")));
}

TEST(ConfigRayTest, WhatRayWouldNotTakeIsNamed) {
  const auto errors = [](const std::string& fields) {
    return absl::StrJoin(
        Errors(absl::StrCat(kMinimal, "launch { ray { ", fields, " } }\n")),
        "\n");
  };
  EXPECT_EQ(errors("nodes: 4 resource: \"memory=16e9\" autoscaled: true"), "");
  EXPECT_THAT(errors("nodes: 0"),
              HasSubstr("launch.ray.nodes: value is 0; 1 to 4096"));
  for (const char* const resource :
       {"memory", "=1", "memory=much", "memory=0", "memory=inf"}) {
    EXPECT_THAT(errors(absl::StrCat("resource: \"", resource, "\"")),
                HasSubstr("launch.ray.resource: value is "))
        << resource;
  }
}

TEST(ConfigCheckpointTest, SeveralIntervalsAndTheEdgesPass) {
  for (const char* const fields :
       {"", "every_steps: 1 every_epochs: 0.01 every_seconds: 0.1 keep: 1",
        "every_steps: 1099511627776 keep: 1000 folder: '/shared/run'"}) {
    EXPECT_THAT(Errors(absl::StrCat(kMinimal, "checkpoint { ", fields, " }\n")),
                ElementsAre())
        << fields;
  }
  EXPECT_EQ(ParseOrDie(kMinimal).checkpoint().keep(), 3);
}

TEST(ConfigCheckpointTest, TheBestNeedsEvaluationsBeforeTheEnd) {
  const auto errors = [](const std::string& train) {
    return Errors(absl::StrCat(With("epochs: 2", train),
                               "checkpoint { best_by: ACCURACY }\n"));
  };
  EXPECT_THAT(errors("epochs: 2"), ElementsAre());
  EXPECT_THAT(errors("epochs: 1 eval_every_epochs: 0.5"), ElementsAre());
  for (const char* const train :
       {"", "epochs: 1", "epochs: 2 eval_every_epochs: 2"}) {
    EXPECT_THAT(errors(train),
                ElementsAre(AllOf(HasSubstr("checkpoint.best_by: the job "
                                            "evaluates its model at its end"),
                                  HasSubstr("eval_every_epochs"))))
        << train;
  }
}

TEST(ConfigCheckpointTest, OnlyJobsWithCheckpointsCanBeRestored) {
  const std::string restore = "checkpoint { on_server_loss: RESTORE }\n";
  for (const std::string& config :
       {std::string(kMinimal),
        With("ssp { staleness: 3 }", "delays { given: \"uniform:2\" }")}) {
    EXPECT_THAT(Errors(absl::StrCat(config, restore)), ElementsAre()) << config;
  }
  const std::string elastic =
      With("batch_size: 16", "batch_size: 16 sampling: ELASTIC");
  EXPECT_THAT(
      Errors(absl::StrCat(elastic, restore)),
      ElementsAre(HasSubstr("checkpoint.on_server_loss: there are no ")));
  EXPECT_THAT(
      Errors(absl::StrCat(elastic, "checkpoint { on_server_loss: FAIL }\n")),
      ElementsAre());
}

TEST(ConfigCheckpointTest, JobsThatCannotHaveThemMayNotAskForThem) {
  const std::string delays =
      With("ssp { staleness: 3 }", "delays { given: \"uniform:2\" }");
  const std::string elastic =
      With("batch_size: 16", "batch_size: 16 sampling: ELASTIC");
  const std::string checkpoint = "checkpoint { every_steps: 9 }\n";
  EXPECT_THAT(Errors(absl::StrCat(delays, checkpoint)), ElementsAre());
  EXPECT_THAT(Errors(absl::StrCat(elastic, checkpoint)),
              ElementsAre(AllOf(
                  StartsWith("c.txt:10:14: checkpoint.every_steps: there are "
                             "no checkpoints with data.sampling: ELASTIC"),
                  HasSubstr("write sampling: STATIC"))));
  for (const std::string& text : {delays, elastic}) {
    EXPECT_THAT(Errors(absl::StrCat(text, "checkpoint { keep: 1 }\n")),
                ElementsAre());
  }
}

TEST(ConfigErrorsTest, AllProblemsOfAFileAreReportedAtOnce) {
  EXPECT_THAT(
      Errors(absl::StrReplaceAll(kMinimal, {{"job: \"test\"", ""},
                                            {"count: 2", "count: 0"},
                                            {"rate: 0.1", "rate: -1"},
                                            {"epochs: 2", "epochs: -2"}})),
      ElementsAre(StartsWith("c.txt:1:1: job: "),
                  StartsWith("c.txt:3:28: worker[0].count: "),
                  StartsWith("c.txt:6:19: optimizer.sgd.learning_rate: "),
                  StartsWith("c.txt:8:9: train.epochs: ")));
}

TEST(ConfigErrorsTest, EmptyFileNamesEverythingThatIsRequired) {
  EXPECT_THAT(Errors(""), ElementsAre(StartsWith("c.txt:1:1: job: "),
                                      StartsWith("c.txt:1:1: server: "),
                                      StartsWith("c.txt:1:1: worker: ")));
}

TEST(ConfigErrorsTest, OnlyProgramsOfOnesOwnDoWithoutAnOptimizer) {
  const std::string none = absl::StrReplaceAll(
      kMinimal, {{"optimizer { sgd { learning_rate: 0.1 } }", ""}});
  EXPECT_THAT(
      Errors(none),
      ElementsAre(StartsWith("c.txt:1:1: optimizer: is missing; one of")));
  const std::string own =
      "job: 'own' server { host: '127.0.0.1' } worker { "
      "host: '127.0.0.1' command: 'true' }\n";
  EXPECT_THAT(Errors(own), ElementsAre());
  EXPECT_THAT(Errors(absl::StrCat(own, "optimizer {}")),
              ElementsAre(StartsWith("c.txt:2:1: optimizer: is missing")));
  EXPECT_THAT(
      Errors(absl::StrCat(own, "optimizer { sgd { learning_rate: 0 } }")),
      ElementsAre(StartsWith("c.txt:2:19: optimizer.sgd.learning_rate: ")));
}

TEST(ConfigErrorsTest, LogisticRegressionOfTenClassesIsRefused) {
  EXPECT_THAT(
      Errors(
          absl::StrReplaceAll(kMinimal, {{"mlp { hidden: 8 }", "logistic{}"}})),
      ElementsAre(AllOf(StartsWith("c.txt:5:8: data.teacher_student.classes: "),
                        HasSubstr("softmax {}"))));
}

TEST(ConfigErrorsTest, LinearRegressionHasNoAccuracyToStopAt) {
  EXPECT_THAT(
      Errors(absl::StrCat(absl::StrReplaceAll(
          kMinimal, {{"mlp { hidden: 8 }", "linear {}"},
                     {"teacher_student {}", "csv { train: 'a' test: 'b' }"},
                     {"train {", "train { stop { test_accuracy: 0.5 } "}}))),
      ElementsAre(AllOf(HasSubstr("train.stop.test_accuracy: model.linear"),
                        HasSubstr("test_loss"))));
}

// ---- Hosts ------------------------------------------------------------------

// All hosts of kMinimal replaced, with `insecure: true` at the end.
std::string OnHost(const std::string& host) {
  return absl::StrCat(
      absl::StrReplaceAll(kMinimal,
                          {{"\"127.0.0.1\"", absl::StrCat("\"", host, "\"")}}),
      "insecure: true\n");
}

TEST(ConfigHostTest, UsableNamesAndAddressesPass) {
  for (const std::string host :
       {"localhost", "127.0.0.2", "10.0.0.5", "node-7.rack_2.example.org",
        "::1", "fd00::5", "FD00:0:0::5", "::ffff:10.0.0.5",
        // Names whose parts are one letter, and look like digits.
        "l.o.I.O", "10.l.o.org", "1.2.3.x"}) {
    EXPECT_THAT(Errors(OnHost(host)), ElementsAre()) << host;
  }
}

TEST(ConfigHostTest, WhatCannotBeConnectedToIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "is empty"},
      {"*", "the other processes connect to this address"},
      {"0.0.0.0", "the other processes connect to this address"},
      {"::", "the other processes connect to this address"},
      {"tcp://10.0.0.5", "leave out the part up to ://"},
      {"10.0.0.5:7000", "the port goes into the field port"},
      {"0:0::0", "the other processes connect to this address"},
      {"fe80::1", "an address of one link"},
      {"[fd00::5]", "without brackets, port and zone"},
      {"fe80::1%eth0", "without brackets, port and zone"},
      {"fd00::5::", "without brackets, port and zone"},
      {"10.0.0", "four numbers from 0 to 255"},
      {"10.0.0.256", "four numbers from 0 to 255"},
      {"10..0.5", "four numbers from 0 to 255"},
      {"127.0.0.l",
       "a letter in place of a digit; an IPv4 address has four "
       "numbers from 0 to 255; did you mean 127.0.0.1?"},
      {"1O.0.o.5", "did you mean 10.0.0.5?"},
      {"my host", "only letters, digits"},
      {std::string(254, 'x'), "at most 253"},
  };
  for (const auto& [host, text] : cases) {
    EXPECT_THAT(Errors(OnHost(host)),
                ElementsAre(AllOf(StartsWith("c.txt:2:10: server[0].host: "),
                                  HasSubstr(text)),
                            AllOf(StartsWith("c.txt:3:10: worker[0].host: "),
                                  HasSubstr(text))));
  }
}

TEST(ConfigHostTest, TheCoordinatorListensWhereServerZeroDoes) {
  const auto listen = [](const std::string& coordinator) {
    const std::string text = absl::StrReplaceAll(
        kMinimal,
        {{"server {", "insecure: true server { listen: \"0.0.0.0\""}});
    return ParseJobConfig(absl::StrCat(text, coordinator), "c.txt")
        .value()
        .coordinator()
        .listen();
  };
  EXPECT_EQ(listen(""), "0.0.0.0");
  EXPECT_EQ(listen("coordinator { listen: \"127.0.0.1\" }"), "127.0.0.1");
  EXPECT_EQ(listen("coordinator { host: \"127.0.0.2\" }"), "");
}

TEST(ConfigHostTest, LoopbackBesideARemoteHostIsRefused) {
  EXPECT_THAT(
      Errors(absl::StrReplaceAll(kMinimal,
                                 {{"\"127.0.0.1\" count", "\"10.0.0.5\" count"},
                                  {"limits", "insecure: true limits"}})),
      ElementsAre(AllOf(StartsWith("c.txt:2:10: server[0].host: value is "
                                   "127.0.0.1; processes on 10.0.0.5"),
                        HasSubstr("worker[0].host"))));
}

TEST(ConfigHostTest, IpcBetweenHostsIsRefused) {
  const std::string text = absl::StrReplaceAll(
      OnHost("10.0.0.5"), {{"10.0.0.5\" count", "10.0.0.6\" count"},
                           {"{ }", "{ transport: IPC }"}});
  EXPECT_THAT(Errors(text),
              ElementsAre(AllOf(StartsWith("c.txt:9:10: limits.transport: "),
                                HasSubstr("names 2 hosts"))));
  EXPECT_THAT(Errors(absl::StrReplaceAll(text, {{"10.0.0.6", "10.0.0.5"}})),
              ElementsAre());
}

TEST(ConfigHostTest, SamePortsOnDifferentHostsAreFine) {
  const std::string server = "server { host: \"10.0.0.6\" port: 9000 } ";
  const std::string text = absl::StrReplaceAll(
      OnHost("10.0.0.5"), {{"server {", server + "server { port: 9000"}});
  EXPECT_THAT(Errors(text), ElementsAre());
}

TEST(ConfigHostTest, APatternGivesEachProcessOfAGroupAHost) {
  const std::string text = absl::StrReplaceAll(
      kMinimal,
      {{"server { host: \"127.0.0.1\" }",
        "insecure: true server { host: \"s-{index}.svc\" count: 2 port: 9000 } "
        "server { host: \"t-{index}\" }"},
       {"\"127.0.0.1\" count: ", "\"w-{index}.svc\" count: 1"}});
  ASSERT_NE(text, kMinimal);
  const config::ClusterConfig config = ParseOrDie(text);
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  ASSERT_EQ(servers.size(), 3U);
  EXPECT_EQ(servers[0].host, "s-0.svc");
  EXPECT_EQ(servers[1].host, "s-1.svc");
  EXPECT_EQ(servers[2].host, "t-0");
  // Ports are those of the group, whatever the hosts.
  EXPECT_EQ(servers[1].first_port, 9001);
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  EXPECT_EQ(workers.front().host, "w-0.svc");
  EXPECT_EQ(workers[1].host, "w-1.svc");
  EXPECT_EQ(config.coordinator().host(), "s-0.svc");
}

TEST(ConfigHostTest, APatternIsCheckedAsTheHostsThatItGives) {
  EXPECT_THAT(Errors(OnHost("node-{index}.svc")), ElementsAre());
  EXPECT_THAT(Errors(OnHost("127.0.0.{index}")), ElementsAre());
  EXPECT_THAT(Errors(OnHost("node-{rank}")),
              Each(HasSubstr("worker {index}, the number of the process")));
  EXPECT_THAT(Errors(OnHost("10.0.0.25{index}{index}")),
              Each(HasSubstr("four numbers from 0 to 255")));
  const std::string ipc =
      absl::StrReplaceAll(OnHost("n-{index}"), {{"{ }", "{ transport: IPC }"}});
  EXPECT_THAT(Errors(ipc), ElementsAre(HasSubstr("names 2 hosts")));
  // The coordinator is on the host of one of them.
  const std::string ports = absl::StrCat(
      absl::StrReplaceAll(OnHost("n-{index}"),
                          {{"server {", "server { port: 9000 count: 2"}}),
      "coordinator { host: \"n-1\" port: 9001 }");
  EXPECT_THAT(Errors(ports),
              ElementsAre(HasSubstr("address n-1:9001 is already taken by "
                                    "coordinator.port")));
  EXPECT_THAT(Errors(absl::StrReplaceAll(ports, {{"n-1", "n-0"}})),
              ElementsAre());
}

// ---- Defaults and expansion -------------------------------------------------

TEST(ConfigDefaultsTest, AreWrittenOut) {
  const config::ClusterConfig config = ParseOrDie(absl::StrReplaceAll(
      kMinimal, {{"sync { ssp { staleness: 3 } pull_ahead: false }", ""},
                 {"train { epochs: 2 }", ""},
                 {"limits { }", ""}}));
  EXPECT_EQ(config.coordinator().host(), "127.0.0.1");
  const std::string text = ToText(config);
  for (const char* expected : {"coordinator {",     "port: 7700",
                               "threads: 1",        "device: CPU",
                               "slowdown: 1",       "train_examples: 60000",
                               "weight_decay: 0",   "warmup_steps: 0",
                               "constant {",        "bsp {",
                               "pull_ahead: false", "epochs: 1",
                               "seed: 1",           "trace: false",
                               "lease_ms: 5000",    "transport: AUTO",
                               "insecure: false",   "mode: MANUAL",
                               "interval_ms: 2000", "concurrent_moves: 4",
                               "bucket_kib: 4096",  "algorithm: RING",
                               "push_type: FLOAT32"}) {
    EXPECT_THAT(text, HasSubstr(expected));
  }
  EXPECT_FALSE(config.train().has_max_steps());
}

TEST(ConfigDefaultsTest, TheStallTimeoutFitsTheOtherTimeouts) {
  const auto stall_ms = [](const std::string& limits) {
    return ParseOrDie(With("limits { }", "limits { " + limits + " }"))
        .limits()
        .stall_timeout_ms();
  };
  EXPECT_EQ(stall_ms(""), 60000);
  EXPECT_EQ(stall_ms("wait_timeout_ms: 600000"), 60000);
  EXPECT_EQ(stall_ms("wait_timeout_ms: 30000"), 15000);
  EXPECT_EQ(stall_ms("wait_timeout_ms: 6000"), 5000) << "a lease";
  EXPECT_EQ(stall_ms("lease_ms: 90000"), 90000);
  EXPECT_EQ(stall_ms("stall_timeout_ms: 7000 wait_timeout_ms: 9000"), 7000);
}

TEST(ConfigDefaultsTest, TheCoordinatorHasTwoLeasesAtLeast) {
  const auto timeout_ms = [](const std::string& limits) {
    return ParseOrDie(With("limits { }", "limits { " + limits + " }"))
        .limits()
        .coordinator_timeout_ms();
  };
  EXPECT_EQ(timeout_ms(""), 120000);
  EXPECT_EQ(timeout_ms("lease_ms: 3600000 wait_timeout_ms: 4000000"), 7200000);
}

TEST(ConfigDefaultsTest, LeaveGivenValuesAlone) {
  const config::ClusterConfig config = ParseOrDie(absl::StrCat(
      kMinimal, "coordinator { host: \"localhost\" port: 0 }\n",
      "schedule { cosine { final_factor: 0.5 } warmup_steps: 7 }\n"));
  EXPECT_EQ(config.coordinator().host(), "localhost");
  EXPECT_EQ(config.coordinator().port(), 0);
  EXPECT_EQ(config.schedule().cosine().final_factor(), 0.5);
  EXPECT_EQ(config.schedule().warmup_steps(), 7);
  EXPECT_FALSE(config.sync().pull_ahead());
  EXPECT_EQ(config.train().epochs(), 2);
}

TEST(ConfigDefaultsTest, WithPhasesThereIsNoOtherMode) {
  const config::ClusterConfig config = ParseOrDie(
      With("ssp { staleness: 3 }",
           "phase { ssp {} until_epoch: 0.5 } phase { allreduce {} }"));
  EXPECT_EQ(config.sync().mode_case(), config::Sync::MODE_NOT_SET);
  EXPECT_EQ(config.sync().phase(0).ssp().staleness(), 3);
  EXPECT_FALSE(config.sync().phase(1).has_until_epoch());
  EXPECT_THAT(ToText(config), HasSubstr("until_epoch: 0.5"));
}

TEST(ConfigDefaultsTest, BucketsAreLargeWhereAllWorkersHaveGpus) {
  EXPECT_EQ(ParseOrDie(With("count: 2", "count: 2 device: CUDA"))
                .sync()
                .collective()
                .bucket_kib(),
            25600);
  EXPECT_EQ(ParseOrDie(
                With("count: 2", "device: CUDA } worker { host: \"localhost\""))
                .sync()
                .collective()
                .bucket_kib(),
            4096);
}

TEST(ConfigProcessesTest, GpusAreCountedOnEachHostUnlessNamed) {
  const config::ClusterConfig config = ParseOrDie(absl::StrReplaceAll(
      kMinimal,
      {{"127.0.0.1\" count: 2",
        "10.0.0.5\" device: CUDA count: 2 } "
        "worker { host: \"10.0.0.6\" device: CUDA } "
        "worker { host: \"10.0.0.6\" count: 2 } "
        "worker { host: \"10.0.0.6\" device: CUDA count: 2 gpu: [7, 3] } "
        "worker { host: \"10.0.0.5\" device: CUDA"},
       {"127.0.0.1", "10.0.0.5"},
       {"limits", "insecure: true limits"}}));
  std::vector<int> gpus;
  for (const WorkerProcess& worker : WorkerProcesses(config)) {
    gpus.push_back(worker.gpu);
  }
  EXPECT_THAT(gpus, ElementsAre(0, 1, 0, -1, -1, 7, 3, 2));
}

TEST(ConfigProcessesTest, GroupsAreExpandedInOrder) {
  const config::ClusterConfig config = ParseOrDie(absl::StrReplaceAll(
      kMinimal,
      {{"server {", "server { port: 9000 count: 2 threads: 3 slowdown: 2.5"},
       {"worker {",
        "server { host: \"localhost\" } worker { host: \"localhost\" slowdown: "
        "3 threads: 2 } worker {"}}));
  const std::vector<ServerProcess> servers = ServerProcesses(config);
  ASSERT_EQ(servers.size(), 3);
  EXPECT_EQ(servers[1].index, 1);
  EXPECT_EQ(servers[1].host, "127.0.0.1");
  EXPECT_EQ(servers[1].threads, 3);
  EXPECT_EQ(servers[0].first_port, 9000);
  EXPECT_EQ(servers[1].first_port, 9003);
  EXPECT_EQ(servers[2].host, "localhost");
  EXPECT_EQ(servers[2].first_port, 0);
  EXPECT_EQ(servers[1].slowdown, 2.5);
  EXPECT_EQ(servers[2].slowdown, 1);
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  ASSERT_EQ(workers.size(), 3);
  EXPECT_EQ(workers[0].host, "localhost");
  EXPECT_EQ(workers[0].threads, 2);
  EXPECT_EQ(workers[0].slowdown, 3);
  EXPECT_EQ(workers[2].rank, 2);
  EXPECT_EQ(workers[2].slowdown, 1);
}

// ---- Modes ------------------------------------------------------------------

TEST(ConfigModeTest, TextAndConfigAgree) {
  config::ClusterConfig config = ParseOrDie(kMinimal);
  for (const std::string text : {"bsp", "ssp:0", "ssp:12", "asp", "allreduce",
                                 "dssp:0:0", "dssp:2:9", "backup:2", "auto"}) {
    ASSERT_TRUE(SetMode(text, &config).ok()) << text;
    EXPECT_EQ(ModeText(config), text);
    EXPECT_FALSE(config.sync().pull_ahead());
  }
}

TEST(ConfigModeTest, WithoutASyncBlockItIsBsp) {
  EXPECT_EQ(ModeText(config::ClusterConfig()), "bsp");
}

TEST(ConfigModeTest, TextTellsThePhases) {
  EXPECT_EQ(ModeText(ParseOrDie(
                With("ssp { staleness: 3 }",
                     "phase { allreduce {} until_epoch: 1 } phase { asp {} "
                     "until_epoch: 2.5 } phase { ssp { staleness: 4 } }"))),
            "allreduce until epoch 1, asp until epoch 2.5, ssp:4");
  EXPECT_EQ(ModeText(ParseOrDie(
                With("ssp { staleness: 3 }",
                     "phase { dssp { max_staleness: 9 } until_epoch: 1 } "
                     "phase { backup {} }"))),
            "dssp:3:9 until epoch 1, backup:1");
}

TEST(ConfigModeTest, AModeReplacesThePhases) {
  const std::string text =
      With("ssp { staleness: 3 }",
           "phase { bsp {} until_epoch: 1 } phase { asp {} }");
  EXPECT_EQ(ModeText(ParseOrDie(text, {.mode = "ssp:2", .sets = {}})), "ssp:2");
  EXPECT_EQ(ModeText(ParseOrDie(text, {.mode = "auto", .sets = {}})), "auto");
  EXPECT_THAT(
      Errors(text, {.mode = "bsp", .sets = {"sync.phase[0].until_epoch=2"}}),
      ElementsAre(HasSubstr("'phase[0]' does not exist; the config has 0")));
}

TEST(ConfigModeTest, GivenDelaysTakeThePlaceOfTheMode) {
  const std::string phases =
      With("ssp { staleness: 3 }",
           "phase { bsp {} until_epoch: 1 } phase { asp {} }");
  for (const std::string& text : {std::string(kMinimal), phases}) {
    const config::ClusterConfig config =
        ParseOrDie(text, {.mode = "", .sets = {}, .delays = "uniform:8"});
    EXPECT_EQ(ModeText(config), "delays:uniform:8");
    EXPECT_EQ(config.sync().phase_size(), 0);
  }
  EXPECT_EQ(ModeText(ParseOrDie(
                kMinimal, {.mode = "", .sets = {"sync.delays.given=run/1"}})),
            "delays:run/1");
  EXPECT_THAT(
      Errors(kMinimal, {.mode = "asp", .sets = {}, .delays = "uniform:8"}),
      ElementsAre(HasSubstr("--delays uniform:8: contradicts --mode asp")));
  EXPECT_THAT(
      Errors(kMinimal,
             {.mode = "", .sets = {"sync.asp={}"}, .delays = "uniform:8"}),
      ElementsAre(HasSubstr("--delays uniform:8: contradicts")));
  EXPECT_THAT(Errors(kMinimal, {.mode = "", .sets = {}, .delays = "even:8"}),
              ElementsAre(AllOf(HasSubstr("--delays even:8: sync.delays.given"),
                                HasSubstr("uniform:S"))));
}

TEST(ConfigModeTest, AChangeOfModeIsParsedFromTheSameText) {
  const auto parse = [](absl::string_view text) {
    const absl::StatusOr<wire::SetMode> mode = ParseMode(text);
    EXPECT_TRUE(mode.ok()) << mode.status();
    return mode.ok() ? mode->ShortDebugString() : "";
  };
  EXPECT_EQ(parse("bsp"), "mode { bsp { } }");
  EXPECT_EQ(parse("ssp:5"), "mode { ssp { staleness: 5 } }");
  EXPECT_EQ(parse("ssp"), "mode { ssp { staleness: 3 } }");
  EXPECT_EQ(parse("asp"), "mode { asp { } }");
  EXPECT_EQ(parse("allreduce"), "mode { allreduce { } }");
  EXPECT_EQ(parse("dssp:2:9"),
            "mode { dssp { min_staleness: 2 max_staleness: 9 } }");
  EXPECT_EQ(parse("dssp"),
            "mode { dssp { min_staleness: 3 max_staleness: 15 } }");
  EXPECT_EQ(parse("backup:2"), "mode { backup { workers: 2 } }");
  EXPECT_EQ(parse("backup"), "mode { backup { workers: 1 } }");
  EXPECT_EQ(parse("auto"), "by_policy { }");
}

TEST(ConfigModeTest, ABackupNeedsAnotherWorker) {
  EXPECT_THAT(
      Errors(With("count: 2", "count: 1"), {.mode = "backup", .sets = {}}),
      ElementsAre(HasSubstr("--mode backup: sync.backup.workers: there "
                            "is 1 worker; at least 2 are required")));
}

TEST(ConfigModeTest, UnknownModeNamesTheFormsAndChangesNothing) {
  const config::ClusterConfig before = ParseOrDie(kMinimal);
  for (const std::string text :
       {"", "bps", "ssp:", "ssp:-1", "ssp:x", "auto:3", "ssp:99999999999",
        "BSP", "ssp:dssp", "ssp:1:2", "dssp:3", "dssp:4:3", "dssp:-1:3",
        "dssp:1:2:3", "backup:0", "backup:-1", "backup:x", "bsp:1"}) {
    config::ClusterConfig config = before;
    const absl::Status status = SetMode(text, &config);
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(StartsWith(absl::StrCat("--mode ", text, ": ")),
              HasSubstr("bsp, ssp:S (as in ssp:3), dssp:MIN:MAX (as in "
                        "dssp:3:15), asp, backup:B (as in backup:1), allreduce "
                        "or auto")));
    EXPECT_TRUE(Equal(config, before));
  }
}

TEST(ConfigModeTest, OptionsOfTheSameModeStay) {
  config::ClusterConfig config =
      ParseOrDie(With("ssp { staleness: 3 }", "auto { hold_ms: 500 }"));
  ASSERT_TRUE(SetMode("auto", &config).ok());
  EXPECT_EQ(config.sync().auto_().hold_ms(), 500);
}

// ---- Overrides --------------------------------------------------------------

TEST(ConfigSetTest, SetsFieldsOfEveryType) {
  const config::ClusterConfig config = ParseOrDie(
      kMinimal, {.mode = "",
                 .sets = {"job=renamed", "train.epochs=0.5",
                          "train.max_steps=12345678901", "train.trace=true",
                          "worker[0].slowdown = 3", "worker[0].count=5",
                          "limits.transport=TCP", "model.mlp.hidden=[256, 128]",
                          "optimizer.sgd.learning_rate=1e-3"}});
  EXPECT_EQ(config.job(), "renamed");
  EXPECT_EQ(config.train().epochs(), 0.5);
  EXPECT_EQ(config.train().max_steps(), 12345678901);
  EXPECT_TRUE(config.train().trace());
  EXPECT_EQ(config.worker(0).slowdown(), 3);
  EXPECT_EQ(config.worker(0).count(), 5);
  EXPECT_EQ(config.limits().transport(), config::Limits::TCP);
  EXPECT_THAT(config.model().mlp().hidden(), ElementsAre(256, 128));
  EXPECT_EQ(config.optimizer().sgd().learning_rate(), 1e-3);
}

TEST(ConfigSetTest, SetsOneElementOfAList) {
  config::ClusterConfig config = ParseOrDie(With("hidden: 8", "hidden: [8,9]"));
  ASSERT_TRUE(SetField("model.mlp.hidden[1]=7", &config).ok());
  EXPECT_THAT(config.model().mlp().hidden(), ElementsAre(8, 7));
  ASSERT_TRUE(SetField("model.mlp.hidden=5", &config).ok());
  EXPECT_THAT(config.model().mlp().hidden(), ElementsAre(5));
}

TEST(ConfigSetTest, AnotherBranchReplacesThePresentOne) {
  const config::ClusterConfig config =
      ParseOrDie(kMinimal, {.mode = "",
                            .sets = {"optimizer.adam.learning_rate=0.01",
                                     "model.softmax={}", "sync.asp={}"}});
  EXPECT_EQ(config.optimizer().adam().learning_rate(), 0.01);
  EXPECT_EQ(config.optimizer().adam().beta2(), 0.999);
  EXPECT_TRUE(config.model().has_softmax());
  EXPECT_EQ(ModeText(config), "asp");
}

TEST(ConfigSetTest, ABlockIsAddedBehindTheLastOneOfAList) {
  config::ClusterConfig config = ParseOrDie(kMinimal);
  ASSERT_TRUE(SetField("sync.stale[0]={scale{}}", &config).ok());
  ASSERT_TRUE(
      SetField("sync.stale[1]={table:'b' drop{beyond_clocks:2}}", &config)
          .ok());
  ASSERT_EQ(config.sync().stale_size(), 2);
  EXPECT_TRUE(config.sync().stale(0).has_scale());
  EXPECT_EQ(config.sync().stale(1).drop().beyond_clocks(), 2);
  EXPECT_FALSE(SetField("sync.stale[3]={scale{}}", &config).ok());
  EXPECT_FALSE(SetField("sync.stale[2].table=x", &config).ok());
}

TEST(ConfigTest, ARuleForStaleGradientsThatMakesNoSenseIsNamed) {
  config::ClusterConfig config = ParseOrDie(kMinimal);
  ASSERT_TRUE(SetField("sync.stale[0]={gap_aware{decay:1}}", &config).ok());
  EXPECT_THAT(
      std::string(ParseJobConfig(ToText(config), "c").status().message()),
      HasSubstr("sync.stale[0].gap_aware.decay: value is 1; at least 0"));
}

TEST(ConfigSetTest, BadAssignmentNamesTheComponentAndChangesNothing) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"train.epochs", "is not of the form path=value"},
      {"=3", "is not of the form path=value"},
      {"trian.epochs=3", "unknown field 'trian'; did you mean 'train'?"},
      {"train.epoch=3", "unknown field 'epoch'; did you mean 'epochs'?"},
      {"train..epochs=3", "unknown field ''"},
      {"train.epochs.x=3", "'epochs' is a number and has no fields inside"},
      {"train.epochs=many", "epochs: value is 'many'; a number is required"},
      {"train.seed=1.5", "seed: value is '1.5'; a whole number"},
      {"train.seed=", "seed: value is ''; a whole number"},
      {"train.trace=yes", "trace: value is 'yes'; true or false is required"},
      {"limits.transport=UDP", "value is 'UDP'; one of AUTO, TCP, IPC, SHM"},
      {"server[0].host=\"localhost\"",
       "host: value is \"localhost\", with quotes; on the command line a text "
       "has none, as in host=localhost"},
      {"worker.count=3", "'worker' is a list of 1; say which element"},
      {"worker[1].count=3", "'worker[1]' does not exist; the config has 1"},
      {"worker[x].count=3", "'worker[x]' is not a field"},
      {"worker[00].count=3", "'worker[00]' is not a field"},
      {"worker[0.count=3", "'worker[0' is not a field"},
      {"worker[-1].count=3", "'worker[-1]' is not a field"},
      {"train[0].epochs=3", "'train' is no list; leave out [0]"},
      {"model.mlp.hidden=[1,x]", "hidden: value is 'x'; a whole number"},
      {"model.mlp.hidden[1]=2", "'hidden[1]' does not exist"},
      {"sync.asp=true", "asp: value is 'true'; a block is set field by field"},
      {"sync={asp{}", "asp"},
      {"optimizer={adagard{}}", "did you mean 'adagrad'?"},
      {"optimizer={adam{beta1: x}}", "value is x; a number is required"},
      {"worker=[]", "'worker' is a list of 1"},
  };
  const config::ClusterConfig before = ParseOrDie(kMinimal);
  for (const auto& [assignment, text] : cases) {
    config::ClusterConfig config = before;
    const absl::Status status = SetField(assignment, &config);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << assignment;
    EXPECT_THAT(std::string(status.message()),
                AllOf(StartsWith(absl::StrCat("--set ", assignment, ": ")),
                      HasSubstr(text)));
    EXPECT_TRUE(Equal(config, before)) << assignment;
  }
}

TEST(ConfigSetTest, ABlockIsReplacedAsAWhole) {
  config::ClusterConfig config = ParseOrDie(kMinimal);
  ASSERT_TRUE(
      SetField("optimizer={ adam { learning_rate: 0.01 beta1: 0.8 } }", &config)
          .ok());
  EXPECT_TRUE(config.optimizer().has_adam());
  EXPECT_EQ(config.optimizer().adam().beta1(), 0.8);
  ASSERT_TRUE(SetField("optimizer.adam={learning_rate: 0.5}", &config).ok());
  EXPECT_EQ(config.optimizer().adam().learning_rate(), 0.5);
  EXPECT_FALSE(config.optimizer().adam().has_beta1());
}

TEST(ConfigSetTest, BadValueIsReportedWithItsFlag) {
  EXPECT_THAT(
      Errors(kMinimal, {.mode = "",
                        .sets = {"train.epochs=-1", "worker[0].count=0",
                                 "model.mlp.hidden=[0]"}}),
      ElementsAre(
          StartsWith("--set worker[0].count=0: worker[0].count: value is 0"),
          StartsWith("--set model.mlp.hidden=[0]: model.mlp.hidden[0]: value"),
          StartsWith("--set train.epochs=-1: train.epochs: value is -1")));
  EXPECT_THAT(Errors(kMinimal, {.mode = "ssp:2000000", .sets = {}}),
              ElementsAre(StartsWith("--mode ssp:2000000: sync.ssp.staleness: "
                                     "value is 2000000; 0 to 1000000")));
}

TEST(ConfigSetTest, FlagCanRepairTheFile) {
  EXPECT_THAT(Errors(With("epochs: 2", "epochs: 0"),
                     {.mode = "", .sets = {"train.epochs=1"}}),
              ElementsAre());
}

TEST(ConfigSetTest, ContradictingFlagsAreRefused) {
  const std::vector<ConfigOverrides> contradictions = {
      {"", {"train.epochs=1", "train.epochs=2"}},
      {"", {"sync.asp={}", "sync.bsp={}"}},
      {"", {"optimizer.adam.beta1=0.5", "optimizer.sgd.learning_rate=1"}},
      {"", {"model.mlp.hidden[0]=3", "model.mlp.hidden=[4]"}},
      {"ssp:3", {"sync.ssp.staleness=4"}},
      {"bsp", {"sync.asp={}"}},
  };
  for (const ConfigOverrides& overrides : contradictions) {
    EXPECT_THAT(Errors(kMinimal, overrides),
                ElementsAre(AllOf(HasSubstr("contradicts a later --set"),
                                  EndsWith("keep one of them"))))
        << overrides.sets.back();
  }
}

// Without model and data.
std::string OwnProgramText(const std::string& worker) {
  return absl::StrReplaceAll(
      kMinimal, {{"model { mlp { hidden: 8 } }", ""},
                 {"data { teacher_student {} batch_size: 16 }", ""},
                 {"worker { host: \"127.0.0.1\" count: 2 }", worker}});
}

TEST(ConfigTest, WorkersMayBeProgramsOfTheirOwn) {
  const config::ClusterConfig config = ParseOrDie(
      OwnProgramText("worker { host: \"127.0.0.1\" count: 2 command: \"a b\" } "
                     "worker { host: \"127.0.0.1\" }"));
  EXPECT_FALSE(config.has_model());
  EXPECT_FALSE(config.has_data());
  const std::vector<WorkerProcess> workers = WorkerProcesses(config);
  ASSERT_EQ(workers.size(), 3u);
  EXPECT_EQ(workers[0].command, "a b");
  EXPECT_EQ(workers[1].command, "a b");
  EXPECT_EQ(workers[2].command, "");
  EXPECT_TRUE(Equal(ParseOrDie(ToText(config)), config));
}

TEST(ConfigTest, ConditionsOfWorkersWithProgramsOfTheirOwnAreChecked) {
  EXPECT_THAT(
      Errors(
          OwnProgramText("worker { host: \"127.0.0.1\" conditions { step_ms: "
                         "-1 } }")),
      ElementsAre(HasSubstr("worker[0].conditions.step_ms: value is -1")));
}

TEST(ConfigSetTest, TheProgramOfTheCommandLineIsThatOfAllWorkers) {
  const config::ClusterConfig config = ParseOrDie(
      OwnProgramText("worker { host: \"127.0.0.1\" command: \"a\" } worker { "
                     "host: \"127.0.0.1\" }"),
      {.mode = "", .sets = {}, .worker_command = {"my program", "--x=$1"}});
  for (const config::WorkerGroup& group : config.worker()) {
    EXPECT_EQ(group.command(), "'my program' '--x=$1'");
  }
  EXPECT_THAT(Errors(kMinimal, {.mode = "",
                                .sets = {"worker[0].command=a"},
                                .worker_command = {"b"}}),
              ElementsAre(HasSubstr("keep one of them")));
  EXPECT_THAT(
      Errors(kMinimal, {.mode = "", .sets = {}, .worker_command = {""}}),
      ElementsAre(StartsWith("-- '': worker[0].command: names no ")));
}

TEST(ConfigSetTest, ModeAndItsOptionsGoTogether) {
  const config::ClusterConfig config = ParseOrDie(
      kMinimal,
      {.mode = "auto",
       .sets = {"sync.auto.hold_ms=500", "sync.collective.bucket_kib=64",
                "sync.pull_ahead=true"}});
  EXPECT_EQ(config.sync().auto_().hold_ms(), 500);
  EXPECT_EQ(config.sync().collective().bucket_kib(), 64);
  EXPECT_TRUE(config.sync().pull_ahead());
}

// ---- Text and hash ----------------------------------------------------------

// Anything that the schema allows and the checks accept, on loopback hosts.
config::ClusterConfig RandomConfig(Rng rng) {
  config::ClusterConfig config;
  config.set_job(absl::StrCat("job-", rng.Below(1000), ".x_y"));
  const auto count = [&rng](int max) {
    return static_cast<int>(rng.Between(1, max));
  };
  // Awkward fractions, so that printing has to keep all bits.
  const auto positive = [&rng] { return std::exp(rng.Normal() * 8); };
  for (int i = count(4); i > 0; --i) {
    config::ServerGroup* group = config.add_server();
    group->set_host(rng.Chance(0.5) ? "127.0.0.1" : "localhost");
    if (rng.Chance(0.5)) group->set_count(count(5));
    if (rng.Chance(0.5)) group->set_threads(count(8));
    if (rng.Chance(0.3)) group->set_port(10000 + 1000 * i);
    if (rng.Chance(0.3)) group->set_slowdown(1 + rng.Uniform() * 9);
  }
  for (int i = count(4); i > 0; --i) {
    config::WorkerGroup* group = config.add_worker();
    group->set_host("127.0.0.1");
    if (rng.Chance(0.5)) group->set_count(count(9));
    if (rng.Chance(0.5)) group->set_slowdown(1 + rng.Uniform() * 9);
    if (rng.Chance(0.3)) {
      config::Conditions* conditions = group->mutable_conditions();
      conditions->set_step_ms(rng.Uniform() * 100);
      if (rng.Chance(0.5)) {
        conditions->mutable_random()->set_mean(1e-9 + rng.Uniform());
      } else {
        conditions->mutable_periodic()->set_factor(1 + rng.Uniform());
        conditions->mutable_periodic()->set_slow_ms(positive());
        conditions->mutable_periodic()->set_fast_ms(rng.Uniform());
      }
      for (int i = count(3); i > 1; --i) {
        config::Pause* pause = conditions->add_pause();
        pause->set_step(rng.Between(0, 1000));
        pause->set_ms(1e-9 + rng.Uniform());
      }
      if (rng.Chance(0.5))
        conditions->mutable_link()->set_bandwidth_mbit(positive());
    }
  }
  if (rng.Chance(0.3)) config.mutable_coordinator()->set_port(count(9999));
  if (rng.Chance(0.3)) {
    config::Etcd* etcd = config.mutable_coordinator()->mutable_etcd();
    for (int i = count(3); i > 0; --i)
      etcd->add_endpoint(absl::StrCat("http://127.0.0.1:", count(9999)));
    if (rng.Chance(0.5)) etcd->set_prefix("/some.where/else-1_2");
  }
  config::Model* model = config.mutable_model();
  config::Data* data = config.mutable_data();
  switch (rng.Below(3)) {
    case 0:
      model->mutable_softmax();
      data->mutable_idx()->set_folder("some \"quoted\" \\ folder");
      break;
    case 1:
      for (int i = count(5); i > 0; --i) {
        model->mutable_mlp()->add_hidden(count(1 << 16));
      }
      data->mutable_teacher_student()->set_seed(rng.Between(0, INT64_MAX));
      break;
    default:
      model->mutable_logistic()->set_l2(positive());
      data->mutable_libsvm()->set_train("tr\xc3\xa4in.gz");
      data->mutable_libsvm()->set_test("'test'");
      data->mutable_libsvm()->set_features(count(1 << 20));
  }
  switch (rng.Below(3)) {
    case 0:
      config.mutable_optimizer()->mutable_sgd()->set_learning_rate(positive());
      break;
    case 1:
      config.mutable_optimizer()->mutable_nesterov()->set_learning_rate(1e-30);
      config.mutable_optimizer()->mutable_nesterov()->set_momentum(
          rng.Uniform());
      break;
    default:
      config.mutable_optimizer()->mutable_adamw()->set_learning_rate(
          positive());
      config.mutable_optimizer()->mutable_adamw()->set_beta1(rng.Uniform());
  }
  if (rng.Chance(0.5)) {
    config.mutable_schedule()->mutable_step()->set_every_epochs(positive());
  }
  if (rng.Chance(0.5)) {
    config.mutable_sync()->mutable_ssp()->set_staleness(count(100));
  } else if (rng.Chance(0.3)) {
    config.mutable_sync()->mutable_allreduce();
  } else if (rng.Chance(0.3)) {
    config::Auto* policy = config.mutable_sync()->mutable_auto_();
    policy->set_even_below(1 + rng.Uniform() * 0.4);
    policy->set_hold_ms(100 + count(9999));
  } else if (rng.Chance(0.5)) {
    config::Phase* first = config.mutable_sync()->add_phase();
    first->mutable_ssp()->set_staleness(count(9));
    first->set_until_epoch(positive());
    config.mutable_sync()->add_phase()->mutable_allreduce();
  }
  if (rng.Chance(0.5)) config.mutable_train()->set_epochs(positive());
  if (rng.Chance(0.5)) {
    config.mutable_train()->set_max_steps(rng.Between(1, int64_t{1} << 40));
  }
  if (rng.Chance(0.3)) {
    config::Stop* stop = config.mutable_train()->mutable_stop();
    stop->set_test_accuracy(1 - rng.Uniform());
    if (rng.Chance(0.5)) stop->set_wall_seconds(positive());
  }
  if (rng.Chance(0.5)) config.mutable_limits()->set_lease_ms(200 + count(9999));
  if (rng.Chance(0.5)) {
    config.mutable_rebalance()->set_mode(config::Rebalance::AUTO);
    config.mutable_rebalance()->set_threshold(1.3 + rng.Uniform());
    config.mutable_rebalance()->set_target(1 + 0.2 * rng.Uniform());
  }
  return config;
}

TEST(ConfigTextTest, RandomConfigsSurviveTextAndBack) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    const config::ClusterConfig given = RandomConfig(Rng(seed));
    const config::ClusterConfig resolved = ParseOrDie(ToText(given));
    const config::ClusterConfig again = ParseOrDie(ToText(resolved));
    ASSERT_TRUE(Equal(resolved, again)) << ToText(resolved);
    ASSERT_EQ(ConfigHash(resolved), ConfigHash(again));
    ASSERT_EQ(resolved.optimizer().sgd().learning_rate(),
              given.optimizer().sgd().learning_rate());
  }
}

TEST(ConfigHashTest, DependsOnTheConfigAndNotOnItsSpelling) {
  const std::string hash = ConfigHash(ParseOrDie(kMinimal));
  EXPECT_EQ(hash.size(), 16);
  EXPECT_EQ(hash,
            ConfigHash(ParseOrDie(absl::StrCat(
                "# comment\n", With("sgd {", "sgd:{"), "insecure: false\n"))));
  EXPECT_EQ(hash, ConfigHash(ParseOrDie(
                      With("epochs: 2", "epochs: 7"),
                      {.mode = "ssp:3", .sets = {"train.epochs=2"}})));
  EXPECT_NE(hash, ConfigHash(ParseOrDie(With("epochs: 2", "epochs: 3"))));
  EXPECT_EQ(hash, ConfigHash(ParseOrDie(
                      absl::StrCat(kMinimal, "track { tensorboard {} }"))));
}

TEST(ConfigHashTest, IsTheSameInEveryBuild) {
  config::ClusterConfig config;
  config.set_job("test");
  config.add_server()->set_host("127.0.0.1");
  EXPECT_EQ(ConfigHash(config), "4261c819c26bb849");
}

TEST(ConfigDifferenceTest, TheFirstFieldIsNamedWithBothValues) {
  const config::ClusterConfig ours = ParseOrDie(kMinimal);
  EXPECT_EQ(FirstDifference(ours, ours), "");
  const auto against = [&](const std::vector<std::string>& sets,
                           const std::string& mode = "") {
    return FirstDifference(ParseOrDie(kMinimal, {.mode = mode, .sets = sets}),
                           ours);
  };
  EXPECT_EQ(against({"train.epochs=7"}),
            "train.epochs: its value is 7, the coordinator's is 2");
  EXPECT_EQ(against({}, "asp"),
            "sync.mode: its value is asp { }, the coordinator's is ssp { "
            "staleness: 3 }");
  EXPECT_EQ(against({"job=other"}),
            "job: its value is \"other\", the coordinator's is \"test\"");
  config::ClusterConfig more = ours;
  more.add_worker()->set_host(std::string(1000, 'h'));
  const std::string added = FirstDifference(more, ours);
  EXPECT_EQ(added.find(absl::StrCat("worker[", ours.worker_size(),
                                    "]: its value is { host: \"hhhh")),
            0)
      << added;
  EXPECT_LT(added.size(), 300);
  EXPECT_NE(added.find("the coordinator's is absent"), std::string::npos);
}

// ---- One job ----------------------------------------------------------------

// Servers and workers that name no hosts.
constexpr char kPlaceless[] = R"(
  job: "test"
  server { count: 3 threads: 2 }
  worker { count: 4 }
  model { softmax {} }
  data { teacher_student { features: 16 classes: 4 } batch_size: 64 }
  optimizer { sgd { learning_rate: 0.1 } }
  train { epochs: 2 }
  insecure: true
)";

config::ClusterConfig PlacedOn(const std::string& hosts,
                               const std::vector<std::string>& sets = {}) {
  return ParseOrDie(kPlaceless, {.mode = "",
                                 .sets = sets,
                                 .hosts = *ParseHosts(hosts),
                                 .hosts_origin = "--hosts"});
}

TEST(SameJobTest, HostsPortsAndHowProcessesArePlacedAndStartedHaveNoPartInIt) {
  const config::ClusterConfig run = PlacedOn("n1:2,n2:2");
  EXPECT_EQ(WhyOtherJob(run, run), "");
  for (const config::ClusterConfig& same :
       {PlacedOn("n3:2,n4:2"), PlacedOn("n1:4"), PlacedOn("a:1,b:1,c:1,d:1"),
        PlacedOn("127.0.0.1:4", {"insecure=false"}),
        PlacedOn("n1:2,n2:2", {"coordinator.port=7801"}),
        PlacedOn("n1:4", {"server[0].port=7900", "worker[0].port=7950",
                          "server[0].listen=0.0.0.0"}),
        PlacedOn("n1:4", {"launch.slurm.srun_option=[--mem=0]"}),
        PlacedOn("n1:4", {"launch.ssh.user=me"}),
        PlacedOn("n1:4", {"track.tensorboard={}"})}) {
    EXPECT_EQ(WhyOtherJob(same, run), "") << ToText(same);
    EXPECT_EQ(WhyOtherJob(run, same), "") << ToText(same);
  }
}

TEST(SameJobTest, WhatIsTrainedAndByHowManyHasAndIsNamed) {
  const config::ClusterConfig run = PlacedOn("n1:2,n2:2");
  EXPECT_EQ(WhyOtherJob(PlacedOn("n1:4", {"job=other"}), run),
            "is of job test, and this is other");
  EXPECT_EQ(WhyOtherJob(PlacedOn("n1:4", {"train.epochs=7"}), run),
            "is of another config, or of other flags (train.epochs: its value "
            "is 7, the run's is 2)");
  EXPECT_EQ(WhyOtherJob(PlacedOn("n1:3", {"worker[0].count=3"}), run),
            "is of another config, or of other flags (worker[0].count: its "
            "value is 3, the run's is 4)");
  EXPECT_NE(WhyOtherJob(PlacedOn("n1:4", {"server[0].threads=1"}), run), "");
  EXPECT_NE(WhyOtherJob(PlacedOn("n1:4", {"worker[0].slowdown=2"}), run), "");
}

// ---- Files ------------------------------------------------------------------

std::string ExamplePath(const std::string& name) {
  return absl::StrCat(SLACKLINE_SOURCE_DIR, "/examples/", name);
}

TEST(ConfigFileTest, EveryExampleLoads) {
  int examples = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           absl::StrCat(SLACKLINE_SOURCE_DIR, "/examples"))) {
    if (entry.path().extension() != ".textproto") continue;
    const auto config = LoadJobConfig(entry.path().string());
    EXPECT_TRUE(config.ok()) << config.status();
    ++examples;
  }
  EXPECT_GE(examples, 5);
}

TEST(ConfigFileTest, EveryDataBlockOfTheDocumentsLoads) {
  std::ifstream page(
      absl::StrCat(SLACKLINE_SOURCE_DIR, "/docs/manual/training.md"));
  std::string block;
  int depth = 0;
  int blocks = 0;
  bool fenced = false;
  for (std::string line; std::getline(page, line);) {
    if (absl::StartsWith(line, "```")) fenced = !fenced;
    if (!fenced || (depth == 0 && !absl::StartsWith(line, "data {"))) continue;
    absl::StrAppend(&block, line, "\n");
    depth += static_cast<int>(std::count(line.begin(), line.end(), '{') -
                              std::count(line.begin(), line.end(), '}'));
    if (depth > 0) continue;
    EXPECT_THAT(
        Errors(With("data { teacher_student {} batch_size: 16 }", block)),
        ElementsAre())
        << block;
    ++blocks;
    block.clear();
  }
  EXPECT_GE(blocks, 5);
}

TEST(ConfigFileTest, MissingFileAndFolderAreNamed) {
  const std::string missing = ExamplePath("no-such-file.textproto");
  auto config = LoadJobConfig(missing);
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()),
              AllOf(HasSubstr(missing), HasSubstr("No such file")));
  config = LoadJobConfig(ExamplePath(""));
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("is a folder"));
  config = LoadJobConfig("/dev/zero");
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.status().message()),
              HasSubstr("is a pipe or a device"));
}

TEST(ConfigFileTest, ErrorsBeginWithThePathOfTheFile) {
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/slackline_config_test.textproto");
  std::ofstream(path) << With("epochs: 2", "epochs: 0");
  const auto config = LoadJobConfig(path);
  EXPECT_THAT(std::string(config.status().message()),
              StartsWith(absl::StrCat(path, ":8:9: train.epochs: value is 0")));
  EXPECT_TRUE(
      LoadJobConfig(path, {.mode = "asp", .sets = {"train.epochs=1"}}).ok());
  std::filesystem::remove(path);
}

// Goal: no text, however broken, crashes the reader, and every refusal says
// something. Method: seeded edits of an example, of bytes and of whole words.
TEST(ConfigFuzzTest, MutatedExamplesParseOrFailWithAMessage) {
  std::ifstream file(ExamplePath("mnist_mlp.textproto"));
  const std::string example((std::istreambuf_iterator<char>(file)), {});
  ASSERT_FALSE(example.empty());
  const std::vector<std::string> words = {
      "{",    "}",  "[",       "]",
      "<",    ">",  ":",       ",",
      "-",    "\"", "server ", "sync ",
      "inf ", "1 ", "nan ",    "mlp ",
      "#",    "\n", "0x",      "1e999",
      "'",    "\\", "count",   "hidden: [",
      "host", ";",  "/",       "999999999999999999999"};
  int valid = 0;
  int refused = 0;
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Rng rng(seed);
    std::string text = example;
    for (int edits = static_cast<int>(rng.Between(1, 8)); edits > 0; --edits) {
      const size_t at = rng.Below(text.size() + 1);
      switch (rng.Below(4)) {
        case 0:
          text.insert(at, words[rng.Below(words.size())]);
          break;
        case 1:
          text.insert(at, 1, static_cast<char>(rng.Below(256)));
          break;
        case 2:
          text.erase(at, rng.Below(20));
          break;
        default:
          text.insert(at, text.substr(rng.Below(text.size() + 1), 40));
      }
    }
    const auto config = ParseJobConfig(text, "fuzz");
    if (config.ok()) {
      ++valid;
      ASSERT_TRUE(Equal(ParseOrDie(ToText(*config)), *config));
    } else {
      ++refused;
      ASSERT_THAT(std::string(config.status().message()), StartsWith("fuzz:"));
    }
  }
  // Both happen often, so the edits are neither trivial nor all fatal.
  EXPECT_GT(valid, 100);
  EXPECT_GT(refused, 1000);
}

}  // namespace slackline::config_test
