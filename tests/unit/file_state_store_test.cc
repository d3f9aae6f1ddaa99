// Goal: what a Commit() has returned for is there again whenever the process
// or the host dies, and nothing that is damaged is believed.
// Method: against a map that gets the same changes; the file cut at every
// length, every bit of it flipped; a process that is killed while it commits;
// a disk that is full.
#include "server/coordinator/state/file_state_store.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/coordinator/state/state_batch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/must.h"
#include "tests/support/temp_folder.h"

namespace slackline::file_state_store_test {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string Text(const absl::Status& status) {
  return std::string(status.message());
}

class FileStateStoreTest : public testing::Test {
 protected:
  // DataLoss, with the file and an offset.
  void ExpectRefused(const absl::StatusOr<CoordinatorState>& read,
                     const std::string& when) {
    ASSERT_EQ(read.status().code(), absl::StatusCode::kDataLoss) << when;
    ASSERT_THAT(Text(read.status()), HasSubstr(path_ + ": offset ")) << when;
  }

  const TempFolder folder_;
  const std::string path_ = folder_.File("coordinator.state");
};

TEST_F(FileStateStoreTest, WhatIsCommittedIsThereForTheNextOne) {
  {
    const auto store = Must(FileStateStore::Create(path_));
    EXPECT_THAT(store->state(), IsEmpty());
    Must(store->Commit(
        {{"view", "1"}, {"gone", "x"}, {"", std::string("\0\xff", 2)}}));
    Must(store->Commit({}));
    Must(store->Commit({{"view", "2"}, {"gone", std::nullopt}, {"empty", ""}}));
  }
  const CoordinatorState state = {
      {"", std::string("\0\xff", 2)}, {"empty", ""}, {"view", "2"}};
  EXPECT_EQ(Must(ReadStateFile(path_)), state);
  {
    const auto store = Must(FileStateStore::Open(path_));
    EXPECT_EQ(store->state(), state);
    Must(store->Commit({{"view", "3"}}));
  }
  EXPECT_EQ(Must(FileStateStore::Open(path_))->state().at("view"), "3");
  EXPECT_THAT(Must(FileStateStore::Create(path_))->state(), IsEmpty());
  EXPECT_THAT(Must(ReadStateFile(path_)), IsEmpty());
}

TEST_F(FileStateStoreTest, OfOneBatchTheLastChangeOfAKeyCounts) {
  const auto store = Must(FileStateStore::Create(path_));
  Must(store->Commit({{"a", "1"},
                      {"a", std::nullopt},
                      {"a", "2"},
                      {"b", "1"},
                      {"b", std::nullopt}}));
  const CoordinatorState state = {{"a", "2"}};
  EXPECT_EQ(store->state(), state);
  EXPECT_EQ(Must(ReadStateFile(path_)), state);
}

TEST_F(FileStateStoreTest, WithoutAFileThereIsNothingToOpen) {
  EXPECT_EQ(FileStateStore::Open(path_).status().code(),
            absl::StatusCode::kNotFound);
  const auto no_folder = FileStateStore::Create(folder_.File("none/file"));
  EXPECT_THAT(Text(no_folder.status()), HasSubstr(folder_.File("none/file")));
}

// Random commits, with closing and opening in between, against a map.
TEST_F(FileStateStoreTest, HoldsWhatAMapHolds) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    CoordinatorState twin;
    auto store = Must(FileStateStore::Create(path_));
    for (int commit = 0; commit < 30; ++commit) {
      std::vector<StateChange> changes(rng.Below(5));
      for (StateChange& change : changes) {
        change.key = absl::StrCat("key", rng.Below(8));
        twin.erase(change.key);
        if (rng.Chance(0.3)) continue;
        change.value =
            std::string(rng.Below(100000), static_cast<char>(rng.Below(256)));
        twin[change.key] = *change.value;
      }
      Must(store->Commit(changes));
      ASSERT_EQ(store->state(), twin);
      ASSERT_EQ(Must(ReadStateFile(path_)), twin);
      if (rng.Chance(0.2)) {
        store.reset();
        store = Must(FileStateStore::Open(path_));
        ASSERT_EQ(store->state(), twin);
      }
    }
  }
}

// ---- Crashes and damage -----------------------------------------------------

// A file with four batches, and what it held when it had so many bytes.
struct Sample {
  std::string bytes;
  std::vector<std::pair<size_t, CoordinatorState>> held;
};

Sample MakeSample(const std::string& path) {
  Sample sample;
  const auto store = Must(FileStateStore::Create(path));
  const auto look = [&] {
    sample.bytes = ReadWholeFile(path);
    sample.held.emplace_back(sample.bytes.size(), store->state());
  };
  look();
  for (const std::vector<StateChange>& changes :
       {std::vector<StateChange>{{"view", "1"}, {"member/3", "alive"}},
        {{"view", "2"}},
        {{"view", "3"},
         {"member/3", std::nullopt},
         {"zeros", std::string(20, '\0')}}}) {
    Must(store->Commit(changes));
    look();
  }
  return sample;
}

// Cut off, or with zeros instead of the rest and of what comes behind it: a
// power cut leaves either, as the file system has it.
TEST_F(FileStateStoreTest, CutOffOrZeroAfterAnywhereItHasTheLastWholeBatch) {
  const Sample sample = MakeSample(path_);
  const size_t size = sample.bytes.size();
  for (size_t i = 0; i < 3 * (size + 1); ++i) {
    const size_t bytes = i / 3;
    const size_t zeros = i % 3 == 0 ? 0 : size - bytes + (i % 3 - 1) * 4096;
    SCOPED_TRACE(absl::StrCat(bytes, " and ", zeros, " zeros"));
    folder_.Write("coordinator.state",
                  sample.bytes.substr(0, bytes) + std::string(zeros, '\0'));
    const CoordinatorState* held = nullptr;
    for (const auto& [from, state] : sample.held)
      if (bytes >= from) held = &state;
    // What Create() writes is there whole or not at all.
    if (held == nullptr) {
      ExpectRefused(ReadStateFile(path_), "");
      ASSERT_EQ(FileStateStore::Open(path_).status().code(),
                absl::StatusCode::kDataLoss);
      continue;
    }
    ASSERT_EQ(Must(ReadStateFile(path_)), *held);
    if (i % 3 == 1) continue;  // As with more zeros.
    {
      const auto store = Must(FileStateStore::Open(path_));
      ASSERT_EQ(store->state(), *held);
      Must(store->Commit({{"after", "the crash"}}));
    }
    CoordinatorState with_more = *held;
    with_more["after"] = "the crash";
    ASSERT_EQ(Must(ReadStateFile(path_)), with_more);
  }
}

// Some file systems make a file longer before they write what is there.
TEST_F(FileStateStoreTest, ARestOfZerosIsWhatACrashLeaves) {
  const Sample sample = MakeSample(path_);
  for (const size_t zeros : {1, 23, 24, 5000}) {
    folder_.Write("coordinator.state", sample.bytes + std::string(zeros, '\0'));
    EXPECT_EQ(Must(ReadStateFile(path_)), sample.held.back().second);
  }
}

TEST_F(FileStateStoreTest, NoFlippedBitIsBelieved) {
  const Sample sample = MakeSample(path_);
  // All of the file, and one whose last batch is cut off.
  for (const size_t bytes : {sample.bytes.size(), sample.bytes.size() - 1}) {
    const size_t whole =
        bytes == sample.bytes.size() ? bytes : sample.held[2].first;
    for (size_t bit = 0; bit < 8 * bytes; ++bit) {
      std::string damaged = sample.bytes.substr(0, bytes);
      damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ 1 << bit % 8);
      folder_.Write("coordinator.state", damaged);
      const auto read = ReadStateFile(path_);
      if (bit / 8 >= whole && read.ok()) {
        ASSERT_EQ(*read, sample.held[2].second) << bit;
      } else {
        ExpectRefused(read, absl::StrCat("bit ", bit));
      }
    }
  }
}

TEST_F(FileStateStoreTest, AForeignFileIsRefused) {
  const Sample sample = MakeSample(path_);
  for (const std::string& other :
       {std::string(), std::string("{}"), std::string(100, '\0'),
        std::string(100, 'x')}) {
    folder_.Write("coordinator.state", other);
    ExpectRefused(ReadStateFile(path_), other);
  }
  // Of a later format.
  std::string later = sample.bytes;
  later[8] = 2;
  folder_.Write("coordinator.state", later);
  EXPECT_THAT(Text(ReadStateFile(path_).status()),
              HasSubstr("the format is 2, and this program reads 1"));
}

TEST_F(FileStateStoreTest, WhatIsNoFileIsRefused) {
  std::filesystem::create_directory(path_);
  EXPECT_EQ(FileStateStore::Open(path_).status().code(),
            absl::StatusCode::kDataLoss);
  EXPECT_FALSE(FileStateStore::Create(path_).ok());
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(FileStateStore::Open(path_).status().code(),
            absl::StatusCode::kDataLoss);
}

// A process that commits 1, 2, ... and says so is killed: what it has said is
// there, and at most one more.
TEST_F(FileStateStoreTest, AProcessThatIsKilledLeavesWhatItHasCommitted) {
  for (int round = 0; round < 10; ++round) {
    int said[2];
    ASSERT_EQ(pipe(said), 0);
    const pid_t process = fork();
    ASSERT_GE(process, 0);
    if (process == 0) {
      close(said[0]);
      const auto store = Must(FileStateStore::Create(path_));
      for (int64_t i = 1;; ++i) {
        // Long enough that the log is written anew now and then.
        Must(store->Commit(
            {{"count", absl::StrCat(i)}, {"long", std::string(100000, 'x')}}));
        if (write(said[1], &i, sizeof(i)) != sizeof(i)) _exit(1);
      }
    }
    close(said[1]);
    int64_t last = 0;
    for (int i = 0; i < 5 + 7 * round; ++i)
      ASSERT_EQ(read(said[0], &last, sizeof(last)),
                static_cast<ssize_t>(sizeof(last)));
    kill(process, SIGKILL);
    ASSERT_EQ(waitpid(process, nullptr, 0), process);
    while (read(said[0], &last, sizeof(last)) == sizeof(last)) {
    }
    close(said[0]);
    const auto store = Must(FileStateStore::Open(path_));
    int64_t count = 0;
    ASSERT_TRUE(absl::SimpleAtoi(store->state().at("count"), &count));
    EXPECT_GE(count, last);
    EXPECT_LE(count, last + 1);
  }
}

// ---- A log that has become long ---------------------------------------------

TEST_F(FileStateStoreTest, ALongLogIsWrittenAnew) {
  const auto store = Must(FileStateStore::Create(path_));
  Must(store->Commit({{"first", "stays"}}));
  uintmax_t longest = 0;
  for (int i = 0; i < 100; ++i) {
    Must(store->Commit({{"a", std::string(100000, static_cast<char>(i))}}));
    longest = std::max(longest, std::filesystem::file_size(path_));
  }
  // Four times what it holds, a MiB, and the batch that makes it too long.
  EXPECT_LT(longest, 5 * 100100 + (1 << 20));
  const CoordinatorState state = {{"a", std::string(100000, '\x63')},
                                  {"first", "stays"}};
  EXPECT_EQ(store->state(), state);
  EXPECT_EQ(Must(ReadStateFile(path_)), state);
}

TEST_F(FileStateStoreTest, ALogThatCannotBeWrittenAnewGoesOn) {
  const auto store = Must(FileStateStore::Create(path_));
  // Where the new one would be written.
  const std::string partial = absl::StrCat(path_, ".partial-", getpid());
  std::filesystem::create_directory(partial);
  const std::string value(1000000, 'x');
  for (int i = 0; i < 5; ++i)
    Must(store->Commit({{"a", value}, {"count", absl::StrCat(i)}}));
  EXPECT_GT(std::filesystem::file_size(path_), 5 * value.size());
  EXPECT_EQ(Must(ReadStateFile(path_)).at("count"), "4");
  std::filesystem::remove(partial);
  for (int i = 0; i < 8; ++i)
    Must(store->Commit({{"a", value}, {"count", absl::StrCat(i)}}));
  EXPECT_LT(std::filesystem::file_size(path_), 5 * value.size());
  EXPECT_EQ(Must(ReadStateFile(path_)).at("count"), "7");
}

// ---- Others -----------------------------------------------------------------

TEST_F(FileStateStoreTest, OneStoreAtATimeHasTheFile) {
  auto store = Must(FileStateStore::Create(path_));
  Must(store->Commit({{"a", "1"}}));
  for (const absl::Status& second : {FileStateStore::Open(path_).status(),
                                     FileStateStore::Create(path_).status()}) {
    EXPECT_EQ(second.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(
        Text(second),
        AllOf(HasSubstr(path_ + " belongs to"),
              HasSubstr(absl::StrCat("process ", getpid(), " of host"))));
  }
  Must(store->Commit({{"b", "1"}}));
  store.reset();
  EXPECT_EQ(Must(FileStateStore::Open(path_))->state().size(), 2u);
}

// As where a file system has no locks, and another coordinator has begun.
TEST_F(FileStateStoreTest, WhoseFileIsReplacedCommitsNothingMore) {
  const auto store = Must(FileStateStore::Create(path_));
  Must(store->Commit({{"a", "1"}}));
  EXPECT_TRUE(store->AwaitLead().ok());
  const std::string other = folder_.File("other");
  const auto another = Must(FileStateStore::Create(other));
  Must(another->Commit({{"b", "2"}}));
  std::filesystem::rename(other, path_);
  for (const absl::Status& status :
       {store->AwaitLead(), store->Commit({{"a", "3"}})}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(Text(status), HasSubstr(path_ + " was replaced"));
  }
  const CoordinatorState state = {{"b", "2"}};
  EXPECT_EQ(Must(ReadStateFile(path_)), state);
}

TEST_F(FileStateStoreTest, AFileThatIsRemovedIsWrittenAnew) {
  const auto store = Must(FileStateStore::Create(path_));
  Must(store->Commit({{"a", "1"}}));
  std::filesystem::remove(path_);
  EXPECT_TRUE(store->AwaitLead().ok());
  Must(store->Commit({{"b", "2"}}));
  const CoordinatorState state = {{"a", "1"}, {"b", "2"}};
  EXPECT_EQ(Must(ReadStateFile(path_)), state);
}

TEST_F(FileStateStoreTest, AFullDiskEndsItAndLosesNothingBefore) {
  auto store = Must(FileStateStore::Create(path_));
  Must(store->Commit({{"a", "1"}}));
  {
    const FileSizeLimit limit(1000);
    const absl::Status failed =
        store->Commit({{"a", "2"}, {"b", std::string(2000, 'x')}});
    EXPECT_THAT(Text(failed), HasSubstr("write " + path_ + ": File too large"));
    // Smaller ones would fit, but nobody knows what the file has behind the
    // last whole one.
    EXPECT_EQ(store->Commit({{"a", "3"}}), failed);
  }
  EXPECT_FALSE(store->Commit({{"a", "3"}}).ok());
  EXPECT_EQ(std::filesystem::file_size(path_), 1000u);
  const CoordinatorState before = {{"a", "1"}};
  EXPECT_EQ(store->state(), before);
  EXPECT_EQ(Must(ReadStateFile(path_)), before);
  store.reset();
  store = Must(FileStateStore::Open(path_));
  Must(store->Commit({{"a", "2"}}));
  EXPECT_EQ(Must(ReadStateFile(path_)).at("a"), "2");
}

TEST_F(FileStateStoreTest, NothingIsWrittenThatWouldNotBeRead) {
  auto store = Must(FileStateStore::Create(path_));
  Must(store->Commit({{"a", "1"}}));
  const int64_t mib = 1 << 20;
  std::vector<StateChange> changes(kStateBytesMax / mib);
  for (StateChange& change : changes) change.value = std::string(mib, 'x');
  const absl::Status failed = store->Commit(changes);
  EXPECT_EQ(failed.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(Text(failed),
              HasSubstr(absl::StrCat("at most ", kStateBytesMax)));
  EXPECT_EQ(Must(ReadStateFile(path_)).at("a"), "1");
  // Nor is read what is too long.
  std::filesystem::resize_file(path_, kStateBytesMax + 1);
  EXPECT_THAT(Text(ReadStateFile(path_).status()),
              HasSubstr(absl::StrCat("has ", kStateBytesMax + 1, " bytes")));
}

}  // namespace slackline::file_state_store_test
