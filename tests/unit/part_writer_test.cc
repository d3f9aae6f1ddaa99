// Goal: parts are written in their order while others go on, and whoever waits
// for one hears what has become of it. Method: small parts on a real disk.
#include "common/checkpoint/part_writer.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <string>

#include "common/checkpoint/kept_file.h"
#include "common/checkpoint/part_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace slackline::part_writer_test {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

Payload Floats(const std::vector<float>& values) {
  return Payload::Copy(values.data(), values.size() * sizeof(float));
}

ShardState Shard(Payload values) {
  return {.table = "t", .region = {0, 2}, .values = std::move(values)};
}

TEST(PartWriterTest, WritesInOrderAndTellsWhatHasBecomeOfEach) {
  const TempFolder folder;
  std::vector<absl::StatusOr<checkpoint::Part>> done;
  std::promise<void> all;
  PartWriter writer;
  for (const char* const name : {"a", "no-folder/b", "c"}) {
    writer.Write({.folder = folder.path(),
                  .file = name,
                  .shards = {Shard(Floats({1, 2}))},
                  .done = [&](const absl::StatusOr<checkpoint::Part>& part) {
                    done.push_back(part);
                    if (done.size() == 3) all.set_value();
                  }});
  }
  all.get_future().wait();
  ASSERT_THAT(done, SizeIs(3));
  EXPECT_TRUE(done[0].ok() && done[2].ok());
  EXPECT_THAT(std::string(done[1].status().message()),
              HasSubstr("no-folder/b"));
  for (const int i : {0, 2})
    EXPECT_TRUE(PartFile::Open(folder.path(), *done[i]).ok());
}

TEST(PartWriterTest, WritesWhatProgramsKeepBehindParts) {
  const TempFolder folder;
  std::vector<std::string> done;
  std::promise<void> last;
  PartWriter writer;
  writer.Write({.folder = folder.path(),
                .file = "a",
                .shards = {Shard(Floats({1, 2}))},
                .done = [&](const auto&) { done.push_back("part"); }});
  writer.Write(PartWriter::KeptJob{
      .folder = folder.path(),
      .rank = 3,
      .state = {.program = "kept"},
      .done = [&](const absl::StatusOr<checkpoint::Kept>& kept) {
        done.push_back(kept.ok() ? *ReadKept(folder.path(), *kept)->program
                                 : "");
        last.set_value();
      }});
  last.get_future().wait();
  EXPECT_THAT(done, ElementsAre("part", "kept"));
}

TEST(PartWriterTest, DropsWhatWaitsForAnotherFolder) {
  const TempFolder folder;
  std::promise<void> begun;
  std::promise<void> queued;
  std::promise<void> last;
  std::vector<std::string> done;
  PartWriter writer;
  const auto write = [&](const std::string& where, const std::string& file) {
    writer.Write({.folder = folder.File(where),
                  .file = file,
                  .shards = {Shard(Floats({1, 2}))},
                  .done = [&, file](const auto&) {
                    done.push_back(file);
                    if (file == "a") {
                      begun.set_value();
                      queued.get_future().wait();
                    }
                    if (file == "d") last.set_value();
                  }});
  };
  write("given-up", "a");
  begun.get_future().wait();  // That one is written already.
  write("given-up", "b");
  write("next", "c");
  write("next", "d");
  queued.set_value();
  last.get_future().wait();
  EXPECT_THAT(done, ElementsAre("a", "c", "d"));
}

TEST(PartWriterTest, LetsGoOfTheTensorsBeforeItTells) {
  const TempFolder folder;
  Payload values = Floats({1, 2});
  std::promise<bool> unique;
  PartWriter writer;
  writer.Write(
      {.folder = folder.path(),
       .file = "p",
       .shards = {Shard(values)},
       .done = [&](const auto&) { unique.set_value(values.unique()); }});
  EXPECT_TRUE(unique.get_future().get());
}

// A pipe that nobody reads from stands for a disk that hangs.
TEST(PartWriterTest, ADiskThatHangsIsNotWaitedForWithoutBound) {
  signal(SIGPIPE, SIG_IGN);
  const TempFolder folder;
  const std::string pipe = folder.File("p.partial-" + std::to_string(getpid()));
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  ShardState shard = Shard(Floats(std::vector<float>(1 << 20)));
  shard.region = {0, 1 << 20};  // More than the pipe takes.
  bool done = false;
  {
    PartWriter writer(absl::Milliseconds(1));
    writer.Write({.folder = folder.path(),
                  .file = "p",
                  .shards = {std::move(shard)},
                  .done = [&](const auto&) { done = true; }});
    pollfd begun{.fd = reader, .events = POLLIN, .revents = 0};
    ASSERT_EQ(poll(&begun, 1, -1), 1);
  }
  EXPECT_FALSE(done);
  close(reader);  // Ends the write.
}

TEST(PartWriterTest, DropsWhatHasNotBegunWhenItEnds) {
  constexpr int kJobs = 1000;  // Seconds of writing.
  const TempFolder folder;
  std::promise<void> queued;
  int done = 0;
  {
    PartWriter writer;
    for (int i = 0; i < kJobs; ++i) {
      writer.Write({.folder = folder.path(),
                    .file = "p",
                    .shards = {Shard(Floats({1, 2}))},
                    .done = [&](const auto&) {
                      if (done++ == 0) queued.get_future().wait();
                    }});
    }
    queued.set_value();
  }
  EXPECT_LT(done, kJobs);
}

}  // namespace slackline::part_writer_test
