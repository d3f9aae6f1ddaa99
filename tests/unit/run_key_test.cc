// The key of a run: the files in its folder while its own key is exchanged, and
// what is told of it.
#include "tools/cli/run/run_key.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/keys/credentials.h"
#include "common/keys/key_file.h"
#include "common/keys/secret.h"
#include "common/process/exit_code.h"
#include "common/process/job_key.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_config.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/agent/changed_files.h"
#include "tools/cli/display.h"
#include "tools/cli/doctor/key_facts.h"
#include "tools/cli/keys/keys_command.h"
#include "tools/cli/run/by_hand.h"
#include "tools/cli/run/kubernetes_run.h"

namespace slackline::run_key_test {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kJob[] =
    "job: 'digits' coordinator { host: 'a' port: 7700 } server { host: 'a' } "
    "worker { host: 'b' count: 2 } model { mlp { hidden: [100, 10] } } "
    "data { teacher_student { features: 100 train_examples: 9000 "
    "test_examples: 1000 } } optimizer { sgd { learning_rate: 0.1 } } "
    "sync { ssp {} } ";

config::ClusterConfig Job(const std::string& more = "") {
  return Must(ParseJobConfig(absl::StrCat(kJob, more), "job.txt"));
}

keys::Key KeyOf(uint8_t secret) {
  keys::Key key;
  key.set_secret(Secret(Secret::Bytes{secret}).ToHex());
  return key;
}

// What is made of the first one, and from then on of the next one.
keys::Key Exchanged(uint8_t first, uint8_t next, absl::Time from) {
  keys::Key key = KeyOf(first);
  *key.mutable_next() = KeyOf(next);
  key.set_next_from(absl::ToUnixSeconds(from));
  return key;
}

std::string OperatorOf(uint8_t secret) {
  return CredentialsOf(JobSecret(Secret(Secret::Bytes{secret}), "digits"),
                       Role::kOperator)
      .own.ToHex();
}

class RunKeyTest : public ::testing::Test {
 protected:
  void Put(const keys::Key& key) {
    Must(WriteKeyFile(file_, key, /*replace=*/true));
  }
  std::unique_ptr<RunKey> Make() {
    return Must(RunKey::Make(Job(), {.given = file_}, folder_.path()));
  }

  const TempFolder folder_{"run"};
  const TempFolder home_{"home"};
  const std::string file_ = home_.File("key");
  // Of another length in the file, whose size tells that it has changed.
  const absl::Time past_ = absl::FromUnixSeconds(1'000);
  const absl::Time future_ = absl::Now() + absl::Hours(1);
};

// As a run that is restored begins: with what the file names first by then.
TEST_F(RunKeyTest, WhoBeginsAfterTwoExchangesHasThePlanOfTheFile) {
  Put(KeyOf(1));
  const std::unique_ptr<RunKey> key = Make();
  EXPECT_EQ(key->source()->plan.first.own.ToHex(), OperatorOf(1));
  Put(Exchanged(1, 2, past_));
  EXPECT_THAT(Must(key->Follow()), HasSubstr("is exchanged at "));
  ASSERT_TRUE(key->source()->plan.next.has_value());
  Put(Exchanged(2, 3, future_));
  EXPECT_THAT(Must(key->Follow()), HasSubstr("is exchanged at "));
  EXPECT_EQ(key->source()->plan.first.own.ToHex(), OperatorOf(2));
  ASSERT_TRUE(key->source()->plan.next.has_value());
  EXPECT_EQ(key->source()->plan.next->own.ToHex(), OperatorOf(3));
  EXPECT_EQ(Must(key->Follow()), "");
}

TEST_F(RunKeyTest, TheNextKeyAloneCountsOnceItsTimeHasCome) {
  Put(KeyOf(1));
  const std::unique_ptr<RunKey> key = Make();
  const std::string of_job = folder_.File("job.key");
  const std::string first = Must(ReadKeyFile(of_job)).secret();
  Put(Exchanged(1, 2, future_));
  EXPECT_NE(Must(key->Follow()), "");
  Put(KeyOf(2));
  EXPECT_EQ(Must(key->Follow()), "");
  EXPECT_EQ(Must(ReadKeyFile(of_job)).secret(), first);
  Put(Exchanged(1, 2, past_));
  EXPECT_NE(Must(key->Follow()), "");
  Put(KeyOf(2));
  EXPECT_EQ(Must(key->Follow()), "the key of the job has been exchanged");
  EXPECT_NE(Must(ReadKeyFile(of_job)).secret(), first);
}

// A backup of the file, of before the exchange.
TEST_F(RunKeyTest, TheKeyBeforeDoesNotComeBackOnceItsTimeIsOver) {
  Put(KeyOf(1));
  const std::unique_ptr<RunKey> key = Make();
  const std::string of_job = folder_.File("job.key");
  Put(Exchanged(1, 2, past_));
  EXPECT_THAT(Must(key->Follow()), HasSubstr("is exchanged at "));
  for (const keys::Key& old : {KeyOf(1), Exchanged(1, 3, future_)}) {
    Put(old);
    const absl::Status refused = key->Follow().status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_EQ(Must(key->Follow()), "") << "it is said once";
    EXPECT_TRUE(Must(ReadKeyFile(of_job)).has_next());
  }
  Put(KeyOf(2));
  EXPECT_EQ(Must(key->Follow()), "the key of the job has been exchanged");
}

// Until then the exchange can be taken back.
TEST_F(RunKeyTest, AnExchangeToComeIsTakenBackWithTheKeyBefore) {
  Put(KeyOf(1));
  const std::unique_ptr<RunKey> key = Make();
  Put(Exchanged(1, 2, future_));
  EXPECT_THAT(Must(key->Follow()), HasSubstr("is exchanged at "));
  Put(KeyOf(1));
  EXPECT_EQ(Must(key->Follow()),
            "the key of the job is not exchanged any more");
}

TEST_F(RunKeyTest, AFileThatStaysBrokenIsSaidOnce) {
  Put(KeyOf(1));
  const std::unique_ptr<RunKey> key = Make();
  home_.Write("key", "secret: \"12");
  EXPECT_EQ(Must(key->Follow()), "");
  EXPECT_TRUE(absl::IsInvalidArgument(key->Follow().status()));
  EXPECT_EQ(Must(key->Follow()), "");
  Put(Exchanged(1, 2, future_));
  EXPECT_THAT(Must(key->Follow()), HasSubstr("is exchanged at "));
}

TEST_F(RunKeyTest, KeysOfWorkersThatThisRunHasNotAreGone) {
  Put(KeyOf(1));
  for (const char* const name :
       {"worker-1.key", "worker-2.key", "worker-x.key"})
    folder_.Write(name, "of an earlier run");
  const std::unique_ptr<RunKey> key = Make();
  EXPECT_TRUE(ReadKeyFile(folder_.File("worker-1.key")).ok());
  EXPECT_FALSE(fs::exists(folder_.File("worker-2.key")));
  EXPECT_TRUE(fs::exists(folder_.File("worker-x.key")));
}

TEST_F(RunKeyTest, AFileOfTheRunItselfIsRefused) {
  const std::string file = folder_.File("job.key");
  Must(WriteKeyFile(file, KeyOf(1)));
  const absl::Status refused =
      RunKey::Make(Job(), {.given = file}, folder_.path()).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused));
  EXPECT_THAT(std::string(refused.message()),
              AllOf(HasSubstr("--key: "), HasSubstr(file)));
  EXPECT_TRUE(fs::exists(file));
}

TEST_F(RunKeyTest, FilesWithKeysAreNotSent) {
  for (const std::string& name :
       {std::string(kJobKeyName), WorkerKeyName(12)}) {
    EXPECT_TRUE(IsKeyName(name));
    EXPECT_FALSE(IsSentName(name));
    EXPECT_FALSE(IsSentName(absl::StrCat("logs/", name)));
  }
  EXPECT_FALSE(IsSentName("job.key.bak"));
  EXPECT_FALSE(IsKeyName("worker-12.log"));
}

// Alike: what opens from now on is the same.
TEST_F(RunKeyTest, FingerprintsTellWhatWillOpen) {
  const absl::Time now = absl::Now();
  const auto print = [&](const keys::Key& key) {
    Put(key);
    return KeyFingerprint("digits", file_, now);
  };
  const std::string second = print(KeyOf(2));
  EXPECT_EQ(second.size(), 16u);
  EXPECT_EQ(print(Exchanged(1, 2, past_)), second);
  EXPECT_NE(print(KeyOf(1)), second);
  const std::string third = print(Exchanged(2, 3, future_));
  EXPECT_NE(third, second);
  EXPECT_NE(print(Exchanged(2, 4, future_)), third);
  EXPECT_NE(print(Exchanged(2, 3, future_ + absl::Minutes(1))), third);
  EXPECT_EQ(print(Exchanged(2, 3, future_)), third);
}

TEST_F(RunKeyTest, LinesByHandNameTheKeyThatIsGiven) {
  RunOptions options;
  options.config_path = "job.textproto";
  options.bin_dir = "/bin";
  const config::ClusterConfig job = Job();
  EXPECT_THAT(
      ByHandText(options, job, {"a", "b"}),
      AllOf(HasSubstr("~/.config/slackline/key"), Not(HasSubstr("--key"))));
  options.key.given = "/k/mine";
  EXPECT_THAT(ByHandText(options, job, {"a", "b"}),
              AllOf(HasSubstr("have the key file /k/mine on all of them"),
                    HasSubstr("--index=1 --data-dir=DATA --out=OUT "
                              "--key=/k/mine\n"),
                    HasSubstr("slackline status job.textproto --key /k/mine"),
                    Not(HasSubstr(".config"))));
}

TEST_F(RunKeyTest, APartIsExportedAgainByForce) {
  Put(KeyOf(1));
  ExportKeyOptions options = {.config = home_.Write("job.textproto", kJob),
                              .role = "reader",
                              .key = {.given = file_},
                              .out = home_.File("reader.key")};
  Must(ExportKey(options));
  const std::string first = Must(ReadKeyFile(options.out)).secret();
  Put(KeyOf(2));
  const absl::Status there = ExportKey(options).status();
  EXPECT_TRUE(absl::IsAlreadyExists(there));
  EXPECT_THAT(std::string(there.message()), HasSubstr("--force"));
  EXPECT_EQ(Must(ReadKeyFile(options.out)).secret(), first);
  options.force = true;
  Must(ExportKey(options));
  EXPECT_NE(Must(ReadKeyFile(options.out)).secret(), first);
  options.key = {};
  EXPECT_THAT(std::string(ExportKey(options).status().message()),
              HasSubstr("this user has no home"));
}

// Nobody would have the key that is in them.
TEST_F(RunKeyTest, ManifestsWithAKeyThatNobodyKeepsAreRefused) {
  RunOptions options;
  const std::string more = "launch { kubernetes { image: 'slackline' } }";
  options.config_path = home_.Write("job.textproto", absl::StrCat(kJob, more));
  options.print_script = true;
  const config::ClusterConfig job = Job(more);
  Display display;
  EXPECT_EQ(Must(RunOnKubernetes(options, job, &display)), kExitUsage);
  Put(KeyOf(1));
  options.key.given = file_;
  EXPECT_EQ(Must(RunOnKubernetes(options, job, &display)), kExitDone);
}

}  // namespace slackline::run_key_test
