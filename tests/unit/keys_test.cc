// Keys of a job: what is made of what, the files that they are in, and what
// each of them allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/keys/authority.h"
#include "common/keys/credentials.h"
#include "common/keys/key_file.h"
#include "common/keys/key_watch.h"
#include "common/keys/live_keys.h"
#include "common/keys/secret.h"
#include "common/mutex.h"
#include "tests/support/must.h"

namespace slackline::keys_test {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const Secret kUser(Secret::Bytes{1, 2, 3});

TEST(SecretTest, TextIsReadBack) {
  Secret read({});
  ASSERT_TRUE(Secret::FromHex(kUser.ToHex(), &read));
  EXPECT_EQ(read.bytes(), kUser.bytes());
  EXPECT_EQ(kUser.ToHex().substr(0, 8), "01020300");
  for (const std::string& wrong :
       {std::string(), std::string(62, 'a'), std::string(66, 'a'),
        std::string(63, 'a') + "g", std::string(63, 'a') + " "}) {
    EXPECT_FALSE(Secret::FromHex(wrong, &read)) << wrong;
  }
  EXPECT_EQ(read.bytes(), kUser.bytes());
  EXPECT_NE(Secret::Random().bytes(), Secret::Random().bytes());
}

// So that processes of other builds have the same keys. The figure is that of
// Python's hashlib: blake2b(b"a", digest_size=32, key=bytes([1, 2, 3] + [0] *
// 29)).
TEST(SecretTest, DerivesAsBlake2b) {
  EXPECT_EQ(kUser.Derive("a").ToHex(),
            "fc9564cd1392a67467f14bb4b8f52dbb0d702f4538af7305e01c59ad37d8d7c0");
  EXPECT_NE(kUser.Derive("a").bytes(), kUser.Derive("b").bytes());
}

// As OpenSSL has it: openssl pkey -pubout.
TEST(PublicKeyTest, IsThatOfCurve25519) {
  Secret secret({});
  ASSERT_TRUE(Secret::FromHex(
      "77076d0a7318a57d3c16c17251b26645df4c2f92ebc0992ac177fba51db92c2a",
      &secret));
  EXPECT_EQ(Secret(PublicKeyOf(secret)).ToHex(),
            "f8a9535a2d2ff605e8e144d54f4ef5c62313a2055dbb21fddd3fd9c299eb015d");
}

TEST(CredentialsTest, EachRoleOfEachJobHasItsOwnKey) {
  std::set<PublicKey> keys;
  for (const char* const job : {"digits", "letters"}) {
    for (const Role role :
         {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
      const Credentials held = CredentialsOf(JobSecret(kUser, job), role);
      EXPECT_EQ(held.holder, role);
      EXPECT_TRUE(keys.insert(PublicKeyOf(held.own)).second);
    }
    for (int rank = 0; rank < 3; ++rank) {
      const Credentials held =
          CredentialsOf(JobSecret(kUser, job), {Role::kWorker, Rank{rank}});
      EXPECT_EQ(held.holder, KeyHolder(Role::kWorker, Rank{rank}));
      EXPECT_TRUE(keys.insert(PublicKeyOf(held.own)).second);
    }
  }
}

// Whom a process lets in with these credentials, of all whose keys there are.
std::set<std::string> Admitted(const Credentials& by, const Secret& job) {
  Admission admission(by);
  std::set<std::string> admitted;
  std::vector<KeyHolder> all = {Role::kServer, Role::kWorker, Role::kOperator,
                                Role::kReader};
  // Backwards, and twice: keys are made when they are asked for.
  for (const int rank : {3, 2, 0, 1, 0, 3})
    all.emplace_back(Role::kWorker, Rank{rank});
  for (const KeyHolder& holder : all) {
    const auto found =
        admission.HolderOf(PublicKeyOf(CredentialsOf(job, holder).own));
    if (!found.has_value()) continue;
    EXPECT_EQ(*found, holder);
    admitted.insert(holder.ToString());
  }
  return admitted;
}

TEST(CredentialsTest, ServersAdmitAllRolesAndTheWorkersThatThereAre) {
  const Secret job = JobSecret(kUser, "digits");
  EXPECT_EQ(
      Admitted(CredentialsOf(job, Role::kServer, 3), job),
      (std::set<std::string>{"a server", "a worker", "an operator", "a reader",
                             "worker 0", "worker 1", "worker 2"}));
  const Credentials server = CredentialsOf(job, Role::kServer);
  EXPECT_EQ(Admitted(server, job),
            (std::set<std::string>{"a server", "a worker", "an operator",
                                   "a reader"}));
  EXPECT_EQ(Admission(server).HolderOf(PublicKeyOf(*server.door)),
            std::nullopt);
  EXPECT_TRUE(Admitted(CredentialsOf(job, Role::kReader), job).empty());
}

TEST(CredentialsTest, WorkersShareADoorAndAdmitThoseThatConnectToThem) {
  const Secret job = JobSecret(kUser, "digits");
  const Credentials server = CredentialsOf(job, Role::kServer);
  const Credentials one =
      CredentialsOf(job, {Role::kWorker, Rank{1}}, /*workers=*/3);
  const Credentials any = CredentialsOf(job, Role::kWorker);
  for (const Credentials& worker : {one, any}) {
    EXPECT_EQ(Admitted(worker, job), std::set<std::string>{"a server"});
    EXPECT_EQ(Admission(worker).HolderOf(PublicKeyOf(*any.door)),
              KeyHolder(Role::kWorker));
    EXPECT_FALSE(worker.job.has_value()) << "it makes no keys of others";
    EXPECT_EQ(worker.ring->bytes(), server.ring->bytes());
    EXPECT_EQ(worker.ToListen().bytes(), any.door->bytes());
    EXPECT_EQ(worker.ToConnect(Role::kServer).bytes(), worker.own.bytes());
    EXPECT_EQ(worker.ListenerKey(Role::kWorker), PublicKeyOf(*any.door));
  }
  EXPECT_EQ(server.ToConnect(Role::kWorker).bytes(), server.own.bytes());
  EXPECT_EQ(server.ListenerKey(Role::kWorker), PublicKeyOf(*any.door));
  EXPECT_FALSE(CredentialsOf(job, Role::kReader).ring.has_value());
}

class KeyFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ =
        fs::path(::testing::TempDir()) /
        absl::StrCat(
            "keys-", getpid(), "-",
            ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    file_ = (folder_ / "slackline" / "key").string();
  }
  void TearDown() override { fs::remove_all(folder_); }
  void Write(const std::string& text, mode_t mode = 0600) {
    fs::create_directories(fs::path(file_).parent_path());
    std::ofstream(file_) << text;
    ASSERT_EQ(chmod(file_.c_str(), mode), 0);
  }

  fs::path folder_;
  std::string file_;
};

TEST_F(KeyFileTest, OfAUserIsMadeOnceAndForHimAlone) {
  const keys::Key made = Must(ReadOrMakeUserKey(file_));
  EXPECT_EQ(made.secret().size(), 64u);
  EXPECT_EQ(Must(ReadOrMakeUserKey(file_)).secret(), made.secret());
  struct stat about {};
  ASSERT_EQ(stat(file_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0600);
  ASSERT_EQ(stat(fs::path(file_).parent_path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0077, 0);
  EXPECT_TRUE(absl::IsAlreadyExists(WriteKeyFile(file_, NewUserKey())));
  size_t files = 0;
  for ([[maybe_unused]] const auto& entry :
       fs::directory_iterator(fs::path(file_).parent_path()))
    ++files;
  EXPECT_EQ(files, 1u) << "nothing else is left";
}

TEST_F(KeyFileTest, ThatManyMakeAtOnceIsOne) {
  std::vector<std::string> secrets(16);
  std::vector<std::thread> threads;
  for (std::string& secret : secrets) {
    threads.emplace_back(
        [this, &secret] { secret = Must(ReadOrMakeUserKey(file_)).secret(); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set<std::string>(secrets.begin(), secrets.end()).size(), 1u);
}

// A limit of the size stands for a disk on which less is free.
TEST_F(KeyFileTest, ThatDoesNotFitOnTheDiskSaysSo) {
  fs::create_directories(fs::path(file_).parent_path());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit few = {16, before.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  const absl::Status full = WriteKeyFile(file_, NewUserKey());
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  (void)std::signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(full.message()), HasSubstr(std::strerror(ENOSPC)));
  EXPECT_FALSE(fs::exists(file_));
}

TEST_F(KeyFileTest, ThatOthersCanReadIsRefusedWithTheCommandThatMendsIt) {
  const std::string text = KeyText(NewUserKey());
  for (const mode_t mode : {0640, 0604, 0660, 0666, 0620, 0602}) {
    Write(text, mode);
    const absl::Status refused = ReadKeyFile(file_).status();
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << std::oct << mode;
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr(absl::StrCat("chmod 600 ", file_)));
  }
  for (const mode_t mode : {0600, 0400}) {
    Write(text, mode);
    EXPECT_TRUE(ReadKeyFile(file_).ok());
  }
}

TEST_F(KeyFileTest, ThatIsNoneSaysWhatIsWrong) {
  const std::string hex = kUser.ToHex();
  struct Case {
    std::string text;
    std::string says;
  };
  const std::string role = absl::StrCat("secret: \"", hex, "\" server: \"", hex,
                                        "\" worker: \"", hex, "\" ");
  for (const Case& wrong : std::vector<Case>{
           {"", "secret: is missing; 64 hexadecimal digits are required"},
           {"secret: \"12\"", "secret: is no 64 hexadecimal digits"},
           {"sekret: \"12\"", "sekret"},
           {"-----BEGIN PRIVATE KEY-----", "1:"},
           {role + "role: WORKER", "job: is missing"},
           {role + "role: WORKER job: \"a\"", "ring: is missing"},
           {role + "role: SERVER job: \"a\"", "the key of the whole job"},
           {std::string(20'000, '#'), "more than 16384 bytes"}}) {
    Write(wrong.text);
    const absl::Status status = ReadKeyFile(file_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(wrong.says));
    EXPECT_THAT(std::string(status.message()), HasSubstr(file_));
  }
  fs::remove(file_);
  EXPECT_TRUE(absl::IsNotFound(ReadKeyFile(file_).status()));
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(ReadKeyFile(file_).status()))
      << "it does not wait";
}

TEST_F(KeyFileTest, PartsOfAKeyAllowWhatTheyAreFor) {
  keys::Key user;
  user.set_secret(kUser.ToHex());
  const keys::Key job = Must(JobKeyOf(user, "digits", "user"));
  EXPECT_EQ(job.secret(), JobSecret(kUser, "digits").ToHex());
  const auto held = [](const keys::Key& key, Role role) {
    const absl::StatusOr<KeyPlan> plan =
        KeyPlanFrom(Must(ParseKey(KeyText(key), "text")), "digits", role, "it");
    return plan.ok() ? absl::StatusOr<Credentials>(plan->first) : plan.status();
  };
  for (const Role role :
       {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
    const Credentials whole = Must(held(user, role));
    EXPECT_EQ(Must(held(job, role)).own.bytes(), whole.own.bytes());
    EXPECT_EQ(Must(held(job, role)).server, whole.server);
  }
  const keys::Key worker = Must(RoleKeyOf(user, "digits", Role::kWorker, "it"));
  const Credentials of_worker = Must(held(worker, Role::kWorker));
  const Credentials whole = Must(held(user, Role::kWorker));
  EXPECT_EQ(of_worker.own.bytes(), whole.own.bytes());
  EXPECT_EQ(of_worker.ring->bytes(), whole.ring->bytes());
  EXPECT_EQ(of_worker.door->bytes(), whole.door->bytes());
  for (const Role role : {Role::kServer, Role::kOperator}) {
    const absl::Status refused = held(worker, role).status();
    EXPECT_THAT(std::string(refused.message()),
                HasSubstr("is to be " + KeyHolder(role).ToString()));
  }
  const keys::Key reader = Must(RoleKeyOf(job, "digits", Role::kReader, "it"));
  EXPECT_EQ(Must(held(reader, Role::kOperator)).holder, Role::kReader)
      << "who has it looks with it";
  EXPECT_FALSE(held(reader, Role::kWorker).ok());
  // Of another job.
  for (const keys::Key& other :
       {Must(JobKeyOf(user, "letters", "it")),
        Must(RoleKeyOf(user, "letters", Role::kWorker, "it"))}) {
    EXPECT_THAT(std::string(held(other, Role::kWorker).status().message()),
                HasSubstr("of job 'letters', not of 'digits'"));
  }
}

TEST_F(KeyFileTest, OfOneWorkerIsThatWorkersAlone) {
  keys::Key user;
  user.set_secret(kUser.ToHex());
  const KeyHolder two(Role::kWorker, Rank{2});
  const keys::Key of_two = Must(RoleKeyOf(user, "digits", two, "it"));
  EXPECT_EQ(of_two.rank(), 2);
  const auto held = [](const keys::Key& key, const KeyHolder& holder) {
    return KeyPlanFrom(Must(ParseKey(KeyText(key), "text")), "digits", holder,
                       "it");
  };
  const Credentials own = Must(held(of_two, two)).first;
  EXPECT_EQ(own.holder, two);
  EXPECT_EQ(own.own.bytes(), Must(held(user, two)).first.own.bytes());
  EXPECT_THAT(
      std::string(held(of_two, {Role::kWorker, Rank{3}}).status().message()),
      HasSubstr("holds what worker 2 has of the job, and this process is to "
                "be worker 3"));
  // Who may be any worker may be this one, and remains any.
  const keys::Key of_any = Must(RoleKeyOf(user, "digits", Role::kWorker, "it"));
  EXPECT_FALSE(of_any.has_rank());
  EXPECT_EQ(Must(held(of_any, two)).first.holder, KeyHolder(Role::kWorker));
  EXPECT_NE(of_any.secret(), of_two.secret());
}

// As they were written before each worker had a key.
TEST_F(KeyFileTest, OfBeforeIsReadToo) {
  keys::Key user;
  user.set_secret(kUser.ToHex());
  const keys::Key worker = Must(RoleKeyOf(user, "digits", Role::kWorker, "it"));
  Write(absl::StrCat(KeyText(worker), "worker: \"", worker.server(), "\"\n"));
  EXPECT_EQ(Must(ReadKeyFile(file_)).secret(), worker.secret());
}

TEST_F(KeyFileTest, ItsSuccessorIsReadWithIt) {
  const absl::Time now = absl::FromUnixSeconds(1'800'000'000);
  keys::Key user;
  user.set_secret(kUser.ToHex());
  const keys::Key exchanged =
      Must(WithNewKey(user, now, now + absl::Minutes(1)));
  EXPECT_EQ(exchanged.secret(), user.secret());
  EXPECT_EQ(exchanged.next_from(), 1'800'000'060);
  EXPECT_NE(exchanged.next().secret(), user.secret());
  // What is made of it has a successor that is made of its successor.
  const keys::Key worker =
      Must(RoleKeyOf(exchanged, "digits", Role::kWorker, "it"));
  EXPECT_EQ(worker.secret(),
            Must(RoleKeyOf(user, "digits", Role::kWorker, "it")).secret());
  EXPECT_EQ(worker.next_from(), exchanged.next_from());
  for (const keys::Key& key : {exchanged, worker}) {
    Must(WriteKeyFile(file_, key, /*replace=*/true));
    const KeyPlan plan = Must(
        KeyPlanFrom(Must(ReadKeyFile(file_)), "digits", Role::kWorker, "it"));
    EXPECT_EQ(
        plan.first.own.bytes(),
        CredentialsOf(JobSecret(kUser, "digits"), Role::kWorker).own.bytes());
    ASSERT_TRUE(plan.next.has_value());
    EXPECT_EQ(plan.next->own.ToHex(),
              Must(RoleKeyOf(exchanged.next(), "digits", Role::kWorker, "it"))
                  .secret());
    EXPECT_EQ(plan.next_from, now + absl::Minutes(1));
  }
  // One exchange after the other.
  const absl::Time between = now + absl::Seconds(59);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      WithNewKey(exchanged, between, between + absl::Minutes(1)).status()));
  const absl::Time later = now + absl::Minutes(1);
  const keys::Key again =
      Must(WithNewKey(exchanged, later, later + absl::Minutes(1)));
  EXPECT_EQ(again.secret(), exchanged.next().secret());
  EXPECT_NE(again.next().secret(), again.secret());
  EXPECT_TRUE(absl::IsInvalidArgument(
      WithNewKey(worker, later, later + absl::Minutes(1)).status()));
}

TEST_F(KeyFileTest, WithASuccessorThatIsNoneSaysWhatIsWrong) {
  const std::string secret = absl::StrCat("secret: \"", kUser.ToHex(), "\" ");
  for (const auto& [rest, says] :
       std::vector<std::pair<std::string, std::string>>{
           {"next {}", "next: secret: is missing"},
           {"next { secret: \"12\" }", "next: secret: is no 64"},
           {"next_from: 12", "next is not; both belong together"},
           {absl::StrCat("next { ", secret, "}"), "next_from: is 0"},
           {absl::StrCat("next { ", secret, "} next_from: -1"),
            "next_from: is -1"},
           {absl::StrCat("next { ", secret, "} next_from: 9000000000000"),
            "from 1 to 253370764800"},
           {absl::StrCat("next { ", secret, "next { ", secret,
                         "} } next_from: 12"),
            "has a successor itself"},
           {absl::StrCat("next { ", secret, "job: \"a\" } next_from: 12"),
            "of another job, role or rank"}}) {
    Write(secret + rest);
    const absl::Status status = ReadKeyFile(file_).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << rest << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(says));
    EXPECT_THAT(std::string(status.message()), HasSubstr(file_));
  }
}

// The keys of one process, and what others say meanwhile.
class LiveKeysTest : public ::testing::Test {
 protected:
  static Credentials Of(uint8_t secret) {
    return CredentialsOf(Secret(Secret::Bytes{secret}), Role::kWorker);
  }
  static bool Holds(const LiveKeys& keys, uint8_t secret) {
    return keys.Get()->credentials.own.bytes() == Of(secret).own.bytes();
  }
  static KeyPlan Plan(uint8_t first, uint8_t next, absl::Time from) {
    return {.first = Of(first), .next = Of(next), .next_from = from};
  }

  const absl::Time begin_ = absl::FromUnixSeconds(1'800'000'000);
  const absl::Time exchange_ = begin_ + absl::Minutes(1);
};

TEST_F(LiveKeysTest, AreExchangedAtTheTimeThatIsPlanned) {
  LiveKeys keys({.first = Of(1)}, begin_);
  EXPECT_EQ(keys.NextFrom(), absl::InfiniteFuture());
  EXPECT_TRUE(keys.Adopt(Plan(1, 2, exchange_)));
  EXPECT_EQ(keys.NextFrom(), exchange_);
  EXPECT_FALSE(keys.Advance(exchange_ - absl::Nanoseconds(1)));
  EXPECT_TRUE(Holds(keys, 1));
  EXPECT_EQ(keys.generation(), 0);
  EXPECT_TRUE(keys.Advance(exchange_));
  EXPECT_TRUE(Holds(keys, 2));
  EXPECT_EQ(keys.generation(), 1);
  EXPECT_EQ(keys.Get()->generation, 1);
  EXPECT_FALSE(keys.Advance(exchange_ + absl::Hours(1)));
  // The file is as it was: it is the exchange that has been.
  EXPECT_TRUE(keys.Adopt(Plan(1, 2, exchange_)));
  EXPECT_FALSE(keys.Advance(exchange_ + absl::Hours(1)));
  EXPECT_TRUE(Holds(keys, 2));
  // And another one.
  EXPECT_TRUE(keys.Adopt(Plan(2, 3, exchange_ + absl::Hours(2))));
  EXPECT_TRUE(keys.Advance(exchange_ + absl::Hours(2)));
  EXPECT_TRUE(Holds(keys, 3));
}

TEST_F(LiveKeysTest, BeginWithThoseThatCount) {
  EXPECT_TRUE(
      Holds(LiveKeys(Plan(1, 2, exchange_), exchange_ - absl::Seconds(1)), 1));
  EXPECT_TRUE(Holds(LiveKeys(Plan(1, 2, exchange_), exchange_), 2));
}

TEST_F(LiveKeysTest, AnExchangeCanBeCalledOff) {
  LiveKeys keys(Plan(1, 2, exchange_), begin_);
  EXPECT_TRUE(keys.Adopt({.first = Of(1)}));
  EXPECT_FALSE(keys.Advance(exchange_ + absl::Hours(1)));
  EXPECT_TRUE(Holds(keys, 1));
}

TEST_F(LiveKeysTest, OthersThatComeWithoutATimeChangeNothing) {
  LiveKeys keys(Plan(1, 2, exchange_), begin_);
  EXPECT_FALSE(keys.Adopt({.first = Of(3)}));
  EXPECT_FALSE(keys.Adopt(Plan(3, 4, exchange_)));
  EXPECT_EQ(keys.NextFrom(), exchange_);
  // Those that follow are no others, and their time is known here.
  EXPECT_TRUE(keys.Adopt({.first = Of(2)}));
  EXPECT_FALSE(keys.Advance(begin_));
  EXPECT_TRUE(keys.Advance(exchange_));
  EXPECT_TRUE(Holds(keys, 2));
}

// Who writes the file does not wait for who reads it.
TEST_F(KeyFileTest, IsFollowedByAProcessThatRuns) {
  keys::Key key;
  key.set_job("digits");
  key.set_secret(kUser.ToHex());
  Must(WriteKeyFile(file_, key));
  Mutex mutex;
  std::vector<std::string> said;
  KeyWatch watch(
      {.file = file_,
       .job = "digits",
       .holder = Role::kServer,
       .plan = Must(KeyPlanFrom(key, "digits", Role::kServer, "it"))},
      [&](bool warns, const std::string& text) {
        const MutexLock lock(mutex);
        said.push_back(absl::StrCat(warns ? "warning: " : "", text));
      });
  const auto await = [&](const std::string& text) {
    for (int i = 0; i < 3000; ++i) {
      {
        const MutexLock lock(mutex);
        for (const std::string& one : said)
          if (one.find(text) != std::string::npos) return true;
      }
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  };
  Write("secret: \"12", 0600);
  EXPECT_TRUE(await("goes on with the key that it has"));
  Write(KeyText(NewUserKey()), 0600);
  EXPECT_TRUE(await("does not say from when on it counts"));
  fs::remove(file_);
  EXPECT_EQ(watch.keys()->generation(), 0);
  const absl::Time now = absl::Now();
  Must(WriteKeyFile(file_, Must(WithNewKey(key, now, now + absl::Seconds(4)))));
  EXPECT_TRUE(await("will be exchanged at "));
  EXPECT_TRUE(await("have been exchanged"));
  EXPECT_EQ(watch.keys()->generation(), 1);
  EXPECT_NE(watch.keys()->Get()->credentials.own.bytes(),
            CredentialsOf(kUser, Role::kServer).own.bytes());
}

// The key of one worker: whose name may be on what it sends.
TEST(AuthorityTest, AWorkersOwnKeySpeaksForNoOther) {
  const KeyHolder two(Role::kWorker, Rank{2});
  for (const auto kind :
       {PeerId::Kind::kWorker, PeerId::Kind::kSum, PeerId::Kind::kObserver}) {
    EXPECT_TRUE(MayBe(two, {kind, 2, 17}));
    EXPECT_FALSE(MayBe(two, {kind, 3, 17}));
    EXPECT_TRUE(MayBe(Role::kWorker, {kind, 3, 17}));
  }
  EXPECT_FALSE(MayBe(two, {PeerId::Kind::kServer, 2, 17}));
  const auto why = [&](const wire::Header& header) {
    EXPECT_EQ(WhyNotSay(Role::kWorker, header), "");
    return WhyNotSay(two, header);
  };
  for (const int rank : {2, 3}) {
    const std::string expected = rank == 2 ? "" : "may not speak for worker 3";
    wire::Header join;
    join.mutable_join_request()->set_role(wire::JoinRequest::WORKER);
    join.mutable_join_request()->set_index(rank);
    EXPECT_EQ(why(join), expected);
    wire::Header cannot;
    cannot.mutable_call()->mutable_cannot_join()->set_role(
        wire::JoinRequest::WORKER);
    cannot.mutable_call()->mutable_cannot_join()->set_index(rank);
    EXPECT_EQ(why(cannot), expected);
    wire::Header gather;
    gather.mutable_call()->mutable_gather()->set_rank(rank);
    EXPECT_EQ(why(gather), expected);
  }
  // A member's is that of its incarnation.
  wire::Header gather;
  gather.mutable_call()->set_incarnation(7);
  gather.mutable_call()->mutable_gather();
  EXPECT_EQ(why(gather), "");
}

// Every message that there is, and every call: who may send it.
TEST(AuthorityTest, IsATable) {
  std::string table;
  const auto line = [&table](const std::string& what,
                             const wire::Header& header) {
    std::string who;
    for (const Role role :
         {Role::kServer, Role::kWorker, Role::kOperator, Role::kReader}) {
      if (WhyNotSay(role, header).empty())
        absl::StrAppend(&who, " ", RoleName(role));
    }
    absl::StrAppend(&table, what, ":", who, "\n");
  };
  const google::protobuf::OneofDescriptor* const bodies =
      wire::Header::descriptor()->FindOneofByName("body");
  for (int i = 0; i < bodies->field_count(); ++i) {
    const google::protobuf::FieldDescriptor* const body = bodies->field(i);
    if (body->name() == "call" || body->name() == "join_request") continue;
    wire::Header header;
    header.GetReflection()->MutableMessage(&header, body);
    line(std::string(body->name()), header);
  }
  for (const auto role : {wire::JoinRequest::SERVER, wire::JoinRequest::WORKER,
                          wire::JoinRequest::ROLE_UNSPECIFIED}) {
    wire::Header header;
    header.mutable_join_request()->set_role(role);
    line(absl::StrCat("join as ", wire::JoinRequest::Role_Name(role)), header);
  }
  const google::protobuf::OneofDescriptor* const kinds =
      wire::Call::descriptor()->FindOneofByName("kind");
  for (const bool member : {false, true}) {
    for (int i = 0; i < kinds->field_count(); ++i) {
      wire::Header header;
      wire::Call& call = *header.mutable_call();
      if (member) call.set_incarnation(3);
      call.GetReflection()->MutableMessage(&call, kinds->field(i));
      if (call.has_cannot_join())
        call.mutable_cannot_join()->set_role(wire::JoinRequest::WORKER);
      if (!member || call.has_stop() || call.has_suspend()) {
        line(absl::StrCat(member ? "a member's call " : "call ",
                          kinds->field(i)->name()),
             header);
      }
    }
  }
  // It costs all members something.
  wire::Header timeline;
  timeline.mutable_call()->mutable_inspect()->mutable_timeline();
  line("call inspect for a timeline", timeline);
  EXPECT_EQ(table,
            "push_request: worker\n"
            "push_reply:\n"
            "pull_request: worker\n"
            "pull_reply:\n"
            "probe_request: worker\n"
            "probe_reply:\n"
            "hand_over: server\n"
            "hand_over_reply: server\n"
            "sum_request: worker\n"
            "sum_reply:\n"
            "error_reply:\n"
            "stats_request:\n"
            "stats_reply:\n"
            "view:\n"
            "view_change:\n"
            "join_reply:\n"
            "heartbeat: server worker\n"
            "heartbeat_reply:\n"
            "call_reply:\n"
            "wrong_run:\n"
            "join as SERVER: server\n"
            "join as WORKER: worker\n"
            "join as ROLE_UNSPECIFIED: worker\n"
            "call gather: server worker\n"
            "call store_put: server worker\n"
            "call store_get: server worker\n"
            "call leave: server worker\n"
            "call status: server worker operator reader\n"
            "call stop: server operator\n"
            "call finish: server operator\n"
            "call rebalance: server operator\n"
            "call move_shards: server operator\n"
            "call drain: server operator\n"
            "call step_limit: server worker\n"
            "call arrive: server worker\n"
            "call entered: server worker\n"
            "call set_mode: server operator\n"
            "call regroup: server worker\n"
            "call next_examples: server worker\n"
            "call checkpoint: server operator\n"
            "call cut_part: server worker\n"
            "call cannot_join: server worker\n"
            "call inspect: server operator reader\n"
            "call inspected: server worker\n"
            "call suspend: server operator\n"
            "call goes_on: server worker\n"
            "call has_examples: server worker\n"
            "a member's call stop: server worker operator\n"
            "a member's call suspend: server worker operator\n"
            "call inspect for a timeline: server operator\n");
}

}  // namespace slackline::keys_test
