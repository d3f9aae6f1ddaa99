// Goal: a coordinator's state in etcd is what was committed, of one leader at a
// time, whatever becomes of leaders and of etcd.
// Method: a real etcd, started for each test and skipped aloud without one.
#include "server/coordinator/state/etcd_state_store.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/rng.h"
#include "common/time/time_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/leased_state_store.h"
#include "tests/net/fake_etcd.h"
#include "tests/support/etcd.h"
#include "tests/support/must.h"

namespace slackline::etcd_state_store_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPrefix[] = "/slackline/digits";
constexpr absl::Duration kShort = absl::Seconds(4);  // Of a lease.
constexpr char kEndpoint[] = "tcp://127.0.0.1:4000";

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

class EtcdStateStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string program = EtcdProgram();
    if (program.empty()) GTEST_SKIP() << kNoEtcd;
    etcd_.emplace(program);
    if (starts_) etcd_->Start();
  }
  // Nobody renews a lease but tests that say so.
  EtcdStateStore::Options Options(absl::Duration lease = absl::Minutes(2)) {
    return {.etcd = {.endpoints = {etcd_->url()}, .timeout = absl::Seconds(30)},
            .prefix = kPrefix,
            .endpoint = kEndpoint,
            .lease = lease,
            .wait_max = absl::Minutes(1)};
  }
  EtcdStateStore::Options WithoutWait() {
    EtcdStateStore::Options options = Options();
    options.wait_max = absl::ZeroDuration();
    return options;
  }
  std::unique_ptr<EtcdClient> Client() {
    return Must(EtcdClient::Create(Options().etcd));
  }
  std::optional<EtcdClient::Entry> Leader() {
    return Must(Client()->Get(absl::StrCat(kPrefix, "/leader")));
  }
  std::vector<EtcdClient::Entry> Log() {
    return Must(Client()->Range(absl::StrCat(kPrefix, "/log/"),
                                absl::StrCat(kPrefix, "/log0"), 10000));
  }
  // At once.
  void EndLease() {
    const std::string key = absl::StrCat(kPrefix, "/leader");
    Must(Client()
             ->Transact({.if_all = {},
                         .puts = {},
                         .removals = {{key, key + "x"}},
                         .else_get = {}})
             .status());
  }
  void Put(const std::string& name, const std::string& value) {
    ASSERT_TRUE(Must(Client()->Transact({.if_all = {},
                                         .puts = {{kPrefix + name, value}},
                                         .removals = {},
                                         .else_get = {}}))
                    .made);
  }

  bool starts_ = true;
  std::optional<Etcd> etcd_;
};

TEST_F(EtcdStateStoreTest, WhatIsCommittedIsThereForTheNextLeader) {
  EXPECT_EQ(EtcdStateStore::Open(Options()).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(Leader().has_value());
  {
    const auto store = Must(EtcdStateStore::Create(Options()));
    EXPECT_THAT(store->state(), IsEmpty());
    EXPECT_THAT(
        Leader()->value,
        HasSubstr(absl::StrCat(kEndpoint, " process ", getpid(), " of host ")));
    Must(store->Commit(
        {{"view", "1"}, {"gone", "x"}, {"", std::string("\0\xff", 2)}}));
    Must(store->Commit({}));
    Must(store->Commit({{"view", "2"}, {"gone", std::nullopt}, {"empty", ""}}));
  }
  const CoordinatorState state = {
      {"", std::string("\0\xff", 2)}, {"empty", ""}, {"view", "2"}};
  {
    const auto store = Must(EtcdStateStore::Open(Options()));
    EXPECT_EQ(store->state(), state);
    Must(store->Commit({{"view", "3"}}));
  }
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state().at("view"), "3");
  EXPECT_THAT(Must(EtcdStateStore::Create(Options()))->state(), IsEmpty());
  EXPECT_THAT(Must(EtcdStateStore::Open(Options()))->state(), IsEmpty());
}

// Random commits, some of them longer than a request may be, against a map.
TEST_F(EtcdStateStoreTest, HoldsWhatAMapHolds) {
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    CoordinatorState twin;
    auto store = Must(EtcdStateStore::Create(Options()));
    for (int commit = 0; commit < 20; ++commit) {
      // etcd takes 128 operations in a transaction, and 1.5 MiB.
      std::vector<StateChange> changes(rng.Chance(0.1) ? 1000 : rng.Below(5));
      const bool longs = changes.size() < 10 && rng.Chance(0.2);
      for (StateChange& change : changes) {
        change.key =
            absl::StrCat("key", rng.Below(changes.size() < 10 ? 8 : 1000));
        twin.erase(change.key);
        if (rng.Chance(0.3)) continue;
        change.value = std::string(rng.Below(longs ? 3000000 : 1000),
                                   static_cast<char>(rng.Below(256)));
        twin[change.key] = *change.value;
      }
      Must(store->Commit(changes));
      ASSERT_EQ(store->state(), twin);
      if (rng.Chance(0.2)) {
        store.reset();
        store = Must(EtcdStateStore::Open(Options()));
        ASSERT_EQ(store->state(), twin);
      }
    }
    store.reset();
    ASSERT_EQ(Must(EtcdStateStore::Open(Options()))->state(), twin);
  }
}

TEST_F(EtcdStateStoreTest, ALongLogIsWrittenAnew) {
  auto store = Must(EtcdStateStore::Create(Options()));
  Must(store->Commit({{"first", "stays"}}));
  size_t most = 0;
  for (int i = 0; i < 100; ++i) {
    Must(store->Commit({{"a", std::string(100000, static_cast<char>(i))}}));
    if (i % 10 == 0) most = std::max(most, Log().size());
  }
  EXPECT_LE(most, 20u);
  // Short ones are counted.
  for (int i = 0; i < 1100; ++i) Must(store->Commit({{"a", absl::StrCat(i)}}));
  EXPECT_LE(Log().size(), 1000u);
  const CoordinatorState state = {{"a", "1099"}, {"first", "stays"}};
  EXPECT_EQ(store->state(), state);
  store.reset();
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state(), state);
}

// ---- Leaders ----------------------------------------------------------------

TEST_F(EtcdStateStoreTest, WhoDoesNotLeadAnyMoreChangesNothing) {
  const auto old = Must(EtcdStateStore::Create(Options(kShort)));
  Must(old->Commit({{"a", "1"}}));
  Must(old->KeepAlive());
  const auto refused = EtcdStateStore::Open(WithoutWait());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(refused.status()),
              AllOf(HasSubstr(kEndpoint),
                    HasSubstr(absl::StrCat("process ", getpid()))));
  // Nobody renews its lease.
  EtcdStateStore::Options others = Options();
  others.endpoint = "tcp://127.0.0.1:4001";
  auto successor = Must(EtcdStateStore::Open(others));
  EXPECT_EQ(successor->state().at("a"), "1");
  Must(successor->Commit({{"a", "2"}}));
  for (const size_t bytes : {1, 3000000}) {
    const absl::Status late = old->Commit({{"a", std::string(bytes, 'x')}});
    EXPECT_EQ(late.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(late), HasSubstr("tcp://127.0.0.1:4001"));
  }
  const absl::Status over = old->KeepAlive();
  EXPECT_EQ(over.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(over), HasSubstr("tcp://127.0.0.1:4001"));
  Must(successor->Commit({{"b", "3"}}));
  successor.reset();
  const CoordinatorState state = {{"a", "2"}, {"b", "3"}};
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state(), state);
}

TEST_F(EtcdStateStoreTest,
       WithoutALeaseNothingIsCommittedThoughNobodyElseLeads) {
  const auto store = Must(EtcdStateStore::Create(Options(kShort)));
  while (Leader().has_value()) absl::SleepFor(absl::Milliseconds(50));
  EXPECT_EQ(store->KeepAlive().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store->Commit({{"a", "1"}}).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(EtcdStateStoreTest, ALeaderThatRenewsItsLeaseStaysOne) {
  const auto store = Must(EtcdStateStore::Create(Options(kShort)));
  std::atomic<bool> stopping{false};
  std::thread keeps_alive([&] {
    while (!stopping) {
      const absl::Status kept = store->KeepAlive();
      EXPECT_NE(kept.code(), absl::StatusCode::kFailedPrecondition) << kept;
      absl::SleepFor(store->keep_alive_every() / 2);
    }
  });
  // Longer than the lease, with commits at the same time.
  std::future<absl::Status> other = std::async(std::launch::async, [this] {
    EtcdStateStore::Options options = Options();
    options.wait_max = 2 * kShort;
    return EtcdStateStore::Open(options).status();
  });
  int commits = 0;
  while (other.wait_for(std::chrono::milliseconds(10)) !=
         std::future_status::ready)
    Must(store->Commit({{"a", absl::StrCat(++commits)}}));
  EXPECT_EQ(other.get().code(), absl::StatusCode::kFailedPrecondition);
  stopping = true;
  keeps_alive.join();
  Must(store->Commit({{"a", "last"}}));
}

TEST_F(EtcdStateStoreTest, OneOfManyThatBeginAtOnceLeads) {
  std::vector<std::future<absl::StatusOr<std::unique_ptr<EtcdStateStore>>>> all;
  for (int i = 0; i < 5; ++i) {
    all.push_back(std::async(std::launch::async, [this] {
      return EtcdStateStore::Create(WithoutWait());
    }));
  }
  std::vector<std::unique_ptr<EtcdStateStore>> leaders;
  for (auto& one : all) {
    auto store = one.get();
    if (store.ok()) {
      leaders.push_back(*std::move(store));
    } else {
      EXPECT_EQ(store.status().code(), absl::StatusCode::kFailedPrecondition)
          << store.status();
    }
  }
  ASSERT_EQ(leaders.size(), 1u);
  Must(leaders.front()->Commit({{"a", "1"}}));
}

// ---- The lease that is renewed ----------------------------------------------

TEST_F(EtcdStateStoreTest, WhoseLeaseIsRenewedLeads) {
  LeasedStateStore store(Must(EtcdStateStore::Create(Options(kShort))),
                         absl::Seconds(30));
  EtcdStateStore::Options others = Options();
  others.wait_max = 2 * kShort;
  std::future<absl::Status> other = std::async(std::launch::async, [&] {
    return EtcdStateStore::Open(others).status();
  });
  do {
    EXPECT_EQ(store.AwaitLead(), absl::OkStatus());
    Must(store.Commit({{"a", "1"}}));
  } while (other.wait_for(std::chrono::milliseconds(10)) !=
           std::future_status::ready);
  EXPECT_EQ(other.get().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(EtcdStateStoreTest, WhoseLeaseIsOverHearsWhoLeads) {
  LeasedStateStore store(Must(EtcdStateStore::Create(Options(kShort))),
                         absl::Seconds(30));
  Must(store.AwaitLead());
  Must(Client()->Revoke(Leader()->lease));
  EtcdStateStore::Options others = Options();
  others.endpoint = "tcp://127.0.0.1:4001";
  const auto successor = Must(EtcdStateStore::Open(others));
  absl::Status lead;
  while ((lead = store.AwaitLead()).ok())
    absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(lead.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Text(lead), HasSubstr("tcp://127.0.0.1:4001"));
}

TEST_F(EtcdStateStoreTest, AnEtcdThatIsAwayIsWaitedForAndNotForEver) {
  LeasedStateStore store(Must(EtcdStateStore::Create(Options(kShort))),
                         absl::Seconds(30));
  LeasedStateStore impatient(Must(EtcdStateStore::Create([&] {
                               EtcdStateStore::Options options =
                                   Options(kShort);
                               options.prefix = "/slackline/other";
                               return options;
                             }())),
                             absl::Milliseconds(100));
  Must(store.AwaitLead());
  while (!impatient.AwaitLead().ok()) {
  }
  etcd_->Kill();
  absl::Status lead;
  while ((lead = impatient.AwaitLead()).ok())
    absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(lead.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(lead), HasSubstr("within the next 100ms"));
  std::future<absl::Status> waits =
      std::async(std::launch::async, [&] { return store.AwaitLead(); });
  etcd_->Start();
  EXPECT_EQ(waits.get(), absl::OkStatus());
}

// ---- etcd -------------------------------------------------------------------

TEST_F(EtcdStateStoreTest, ACommitWaitsForAnEtcdThatIsStartedAgain) {
  auto store = Must(EtcdStateStore::Create(Options()));
  Must(store->Commit({{"a", "1"}}));
  etcd_->Kill();
  std::future<absl::Status> commit = std::async(std::launch::async, [&] {
    return store->Commit({{"a", "2"}});
  });
  EXPECT_EQ(commit.wait_for(std::chrono::milliseconds(200)),
            std::future_status::timeout);
  etcd_->Start();
  const absl::Status committed = commit.get();
  ASSERT_TRUE(committed.ok()) << committed;
  EXPECT_TRUE(store->KeepAlive().ok());
  store.reset();
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state().at("a"), "2");
}

std::string LongValue(int i) {
  return std::string(2000000, static_cast<char>(i));
}

// What it has answered for is there, and of the one that it was killed in
// either all or nothing.
TEST_F(EtcdStateStoreTest, AnEtcdThatIsKilledInACommitLosesNothing) {
  for (int round = 0; round < 3; ++round) {
    EtcdStateStore::Options options = Options();
    options.etcd.timeout = absl::Seconds(4);
    auto store = Must(EtcdStateStore::Create(options));
    std::atomic<int> committed{0};
    // Each in parts.
    const auto commit = [&](int i) {
      return store->Commit({{"a", absl::StrCat(i)}, {"b", LongValue(i)}});
    };
    std::future<absl::Status> ended = std::async(std::launch::async, [&] {
      absl::Status status = commit(1);
      for (; status.ok(); status = commit(committed + 1)) ++committed;
      return status;
    });
    while (committed < 3 + round && ended.wait_for(std::chrono::milliseconds(
                                        1)) == std::future_status::timeout) {
    }
    etcd_->Kill();
    EXPECT_EQ(ended.get().code(), absl::StatusCode::kUnavailable);
    const int last = committed;
    EXPECT_GE(last, 3 + round);
    store.reset();
    etcd_->Start();
    EndLease();
    const auto next = Must(EtcdStateStore::Open(Options()));
    const std::string a = next->state().at("a");
    EXPECT_THAT(a, testing::AnyOf(absl::StrCat(last), absl::StrCat(last + 1)));
    EXPECT_EQ(next->state().at("b"), LongValue(std::stoi(a)));
  }
}

// What is tried again because its answer was lost is done once.
TEST_F(EtcdStateStoreTest, AnAnswerThatIsLostChangesNothing) {
  std::atomic<int> transactions{0};
  // Hands on what it gets, but for every other answer to a transaction.
  FakeEtcd relay([&](FakeEtcd& server, int connection) {
    const int etcd = etcd_->Connect();
    bool asks = false;
    std::string asked;
    std::string answer;
    while (server.Receive(connection, 1, &asked)) {
      asks = asks || absl::StrContains(asked, "POST /v3/kv/txn");
      if (!server.Send(etcd, asked) || !server.Receive(etcd, 1, &answer)) break;
      asked.clear();
      if (answer.empty()) continue;
      if (std::exchange(asks, false) && ++transactions % 2 == 1) break;
      if (!server.Send(connection, answer)) break;
      answer.clear();
    }
    close(etcd);
  });
  EtcdStateStore::Options options = Options();
  options.etcd.endpoints = {relay.url()};
  CoordinatorState state;
  {
    const auto store = Must(EtcdStateStore::Create(options));
    for (int i = 0; i < 5; ++i)
      Must(store->Commit({{absl::StrCat(i), std::string(600000, 'x')}}));
    state = store->state();
  }
  EXPECT_GE(transactions, 20);
  const auto store = Must(EtcdStateStore::Open(Options()));
  EXPECT_EQ(store->state(), state);
  EXPECT_EQ(store->state().size(), 5u);
}

TEST_F(EtcdStateStoreTest, ACommitDoesNotWaitLongerThanItsTimeout) {
  EtcdStateStore::Options options = Options();
  options.etcd.timeout = absl::Seconds(1);
  const auto store = Must(EtcdStateStore::Create(options));
  etcd_->Kill();
  const TimeSource time;
  const absl::Time begin = time.Now();
  const absl::Status failed = store->Commit({{"a", "1"}});
  EXPECT_LT(time.Now() - begin, absl::Seconds(10));
  EXPECT_EQ(failed.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Text(failed),
              AllOf(HasSubstr(etcd_->url()), HasSubstr("within 1s")));
  EXPECT_EQ(store->Commit({{"a", "1"}}), failed);
  EXPECT_EQ(store->KeepAlive().code(), absl::StatusCode::kUnavailable);
}

class SmallEtcdTest : public EtcdStateStoreTest {
 protected:
  SmallEtcdTest() { starts_ = false; }
};

TEST_F(SmallEtcdTest, WhatItDoesNotTakeIsRefusedAsEtcdSaysIt) {
  etcd_->Start({"--max-request-bytes=100000"});
  const auto store = Must(EtcdStateStore::Create(Options()));
  Must(store->Commit({{"a", std::string(50000, 'x')}}));
  const absl::Status failed = store->Commit({{"a", std::string(200000, 'x')}});
  EXPECT_THAT(Text(failed), AllOf(HasSubstr("request is too large"),
                                  HasSubstr("--max-request-bytes")));
}

TEST_F(EtcdStateStoreTest, WhatIsDamagedIsNotBelieved) {
  CoordinatorState state;
  {
    const auto store = Must(EtcdStateStore::Create(Options()));
    Must(store->Commit({{"a", "1"}}));
    Must(store->Commit({{"a", std::string(1000000, 'x')}}));
    state = store->state();
  }
  const auto expect_refused = [&](const std::string& key) {
    const absl::Status refused = EtcdStateStore::Open(Options()).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(Text(refused), HasSubstr(kPrefix + key));
  };
  for (const char* const head :
       {"", "1", "2 1 3", "1 3 1", "1 1 18446744073709551615", "1 0 3",
        "1 1 3 "}) {
    Put("/head", head);
    expect_refused("/head");
  }
  Put("/head", "1 1 4");
  expect_refused("/log/0000000000000004/00000000");
  // Parts of a batch that was not completed are no part of another one.
  Put("/log/0000000000000004/00000000", "x");
  Put("/head", "1 1 3");
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state(), state);
  EXPECT_EQ(Log().size(), 4u);
  const std::vector<EtcdClient::Entry> log = Log();
  for (const EtcdClient::Entry& entry : log) {
    const std::string name = entry.key.substr(sizeof(kPrefix) - 1);
    std::string damaged = entry.value;
    damaged[damaged.size() / 2] ^= 1;
    Put(name, damaged);
    expect_refused("/log/");
    Put(name, entry.value + "x");
    expect_refused("/log/");
    Must(Client()
             ->Transact({.if_all = {},
                         .puts = {},
                         .removals = {{entry.key, entry.key + "x"}},
                         .else_get = {}})
             .status());
    expect_refused("/log/");
    Put(name, entry.value);
  }
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state(), state);
  // Who begins anew does not read it.
  Put("/head", "nothing");
  Must(Must(EtcdStateStore::Create(Options()))->Commit({{"a", "2"}}));
  EXPECT_EQ(Must(EtcdStateStore::Open(Options()))->state().at("a"), "2");
}

}  // namespace slackline::etcd_state_store_test
