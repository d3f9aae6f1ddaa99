// What travels between `slackline run` and its agents: frames, and files that
// grow.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/agent.pb.h"
#include "tests/support/temp_folder.h"
#include "tools/cli/agent/agent_frames.h"
#include "tools/cli/agent/changed_files.h"
#include "tools/cli/agent/sent_files.h"

namespace slackline::agent_messages_test {

using ::testing::HasSubstr;

namespace fs = std::filesystem;

agent::FromAgent Note(const std::string& text) {
  agent::FromAgent message;
  message.set_note(text);
  return message;
}

TEST(AgentFramesTest, MessagesComeOutAsTheyWentInHoweverTheStreamIsCut) {
  Rng rng(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::string> notes;
    std::string stream = round % 2 == 0 ? "" : "motd\nslackline-agent\n";
    stream += std::string(kAgentGreeting);
    for (uint64_t i = 0; i < rng.Below(5); ++i) {
      notes.push_back(std::string(rng.Below(3000), 'x'));
      stream += AgentFrame(Note(notes.back()));
    }
    AgentFrameReader reader(/*after_greeting=*/true);
    std::vector<std::string> read;
    for (size_t at = 0; at < stream.size();) {
      const size_t size =
          std::min<size_t>(stream.size() - at, rng.Below(700) + 1);
      reader.Append(absl::string_view(stream).substr(at, size));
      at += size;
      agent::FromAgent message;
      absl::StatusOr<bool> whole = reader.Next(&message);
      for (; whole.ok() && *whole; whole = reader.Next(&message))
        read.push_back(message.note());
      ASSERT_TRUE(whole.ok()) << whole.status();
    }
    EXPECT_EQ(read, notes);
  }
}

TEST(AgentFramesTest, SizesAndBytesOfNoMessageAreRefused) {
  agent::FromAgent message;
  AgentFrameReader large(/*after_greeting=*/false);
  large.Append("\x7f\xff\xff\xff");
  EXPECT_THAT(std::string(large.Next(&message).status().message()),
              HasSubstr("a message has 2147483647 bytes; at most 2097152"));
  AgentFrameReader broken(/*after_greeting=*/false);
  broken.Append(absl::string_view("\0\0\0\2\xff\xff", 6));
  EXPECT_THAT(std::string(broken.Next(&message).status().message()),
              HasSubstr("a message of 2 bytes cannot be read"));
  AgentFrameReader silent(/*after_greeting=*/true);
  silent.Append(std::string(kBeforeGreetingBytesMax + 1, 'x'));
  EXPECT_THAT(std::string(silent.Next(&message).status().message()),
              HasSubstr("no agent answers"));
}

// Looks until all is sent; `bytes_max` for each look.
void SendAll(ChangedFiles* changed, SentFiles* sent, size_t bytes_max) {
  for (bool all = false; !all;) {
    std::vector<agent::FilePart> parts;
    all = changed->Look(bytes_max, &parts);
    for (const agent::FilePart& part : parts) {
      const absl::Status taken = sent->Add("h1", part);
      ASSERT_TRUE(taken.ok()) << taken;
    }
  }
}

void Put(const std::string& path, const std::string& text, bool append) {
  std::ofstream(path, append ? std::ios::app : std::ios::trunc) << text;
}

std::string Get(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file),
          std::istreambuf_iterator<char>()};
}

// Files that grow, are written anew, replaced by others and removed: after each
// look to the end the copies are what is there.
TEST(ChangedFilesTest, CopiesFollowFilesWhateverBecomesOfThem) {
  const TempFolder folder;
  const std::string there = absl::StrCat(folder.path(), "/there");
  const std::string here = absl::StrCat(folder.path(), "/here");
  fs::create_directories(there + "/logs");
  fs::create_directories(here);
  ChangedFiles changed(there, /*all=*/true);
  changed.AddLog("logs/worker-0.log");
  SentFiles sent(here);
  Rng rng(7);
  const std::vector<std::string> names = {"metrics.jsonl", "summary.json",
                                          "logs/worker-0.log"};
  for (int round = 0; round < 100; ++round) {
    const std::string& name = names[rng.Below(names.size())];
    const std::string path = absl::StrCat(there, "/", name);
    // Now and then more than one part.
    const std::string text(
        rng.Below(rng.Below(10) == 0 ? 2 * kFilePartBytesMax : 2000),
        static_cast<char>('a' + round % 26));
    switch (rng.Below(4)) {
      case 0:
        Put(path + "-new", text, /*append=*/false);
        fs::rename(path + "-new", path);
        break;
      case 1:
        fs::remove(path);
        break;
      default:
        Put(path, text, /*append=*/true);
    }
    SendAll(&changed, &sent, rng.Below(2) == 0 ? 1000 : 10 << 20);
    if (fs::exists(path)) {
      ASSERT_EQ(Get(path), Get(absl::StrCat(here, "/", name)))
          << name << " in round " << round;
    }
  }
}

TEST(ChangedFilesTest, WhatWasThereIsSentWhenItChangesAndFilesOfTheHostAreNot) {
  const TempFolder folder;
  Put(folder.path() + "/old.json", "old", false);
  Put(folder.path() + "/kept.json", "kept", false);
  ChangedFiles changed(folder.path(), /*all=*/true);
  for (const char* const name :
       {"cluster.textproto", "coordinator.state", ".mark", "a.partial-7"}) {
    Put(absl::StrCat(folder.path(), "/", name), "x", false);
  }
  fs::create_directory(folder.path() + "/checkpoints");
  fs::create_symlink("/etc/passwd", folder.path() + "/link");
  Put(folder.path() + "/old.json", " and new", true);
  std::vector<agent::FilePart> parts;
  EXPECT_TRUE(changed.Look(1 << 20, &parts));
  ASSERT_EQ(parts.size(), 1);
  EXPECT_EQ(parts[0].name(), "old.json");
  EXPECT_TRUE(parts[0].anew());
  EXPECT_EQ(parts[0].data(), "old and new");
}

// A folder in the file's place stands for a disk that is full.
TEST(SentFilesTest, WhatCouldNotBeWrittenIsMissingUntilItHasComeAnew) {
  const TempFolder folder;
  const std::string there = absl::StrCat(folder.path(), "/there");
  const std::string here = absl::StrCat(folder.path(), "/here");
  fs::create_directories(there);
  fs::create_directories(here);
  ChangedFiles changed(there, /*all=*/true);
  SentFiles sent(here);
  const auto look = [&] {
    std::vector<agent::FilePart> parts;
    EXPECT_TRUE(changed.Look(10 << 20, &parts));
    absl::Status last;
    for (const agent::FilePart& part : parts) last.Update(sent.Add("h1", part));
    return last;
  };
  const std::string path = absl::StrCat(there, "/metrics.jsonl");
  Put(path, "one\n", /*append=*/false);
  ASSERT_TRUE(look().ok());
  const std::string copy = absl::StrCat(here, "/metrics.jsonl");
  fs::rename(copy, copy + "-aside");
  fs::create_directory(copy);
  Put(path, "two\n", /*append=*/true);
  EXPECT_TRUE(absl::IsUnavailable(look()));
  ASSERT_THAT(sent.missing(), ::testing::SizeIs(1));
  EXPECT_EQ(sent.missing()[0].host, "h1");
  EXPECT_EQ(sent.missing()[0].name, "metrics.jsonl");
  EXPECT_THAT(sent.missing()[0].why, ::testing::HasSubstr(copy));
  fs::remove(copy);
  fs::rename(copy + "-aside", copy);
  // More of it alone would leave a gap.
  Put(path, "three\n", /*append=*/true);
  EXPECT_TRUE(look().ok());
  EXPECT_EQ(Get(copy), "one\n");
  EXPECT_THAT(sent.missing(), ::testing::SizeIs(1));
  // Two parts.
  Put(path, std::string(kFilePartBytesMax, 'x'), /*append=*/true);
  EXPECT_TRUE(look().ok());
  changed.SendAgain("metrics.jsonl");
  EXPECT_TRUE(look().ok());
  EXPECT_EQ(Get(copy), Get(path));
  EXPECT_TRUE(sent.missing().empty());
}

TEST(ChangedFilesTest, NamesThatNoMessageCanHaveAreSaidOnceAndStay) {
  const TempFolder folder;
  ChangedFiles changed(folder.path(), /*all=*/true);
  Put(absl::StrCat(folder.path(), "/a\xff"), "x", /*append=*/false);
  std::vector<agent::FilePart> parts;
  EXPECT_TRUE(changed.Look(10 << 20, &parts));
  EXPECT_TRUE(parts.empty());
  EXPECT_THAT(changed.TakeUnsent(), ::testing::ElementsAre("a\xff"));
  EXPECT_TRUE(changed.Look(10 << 20, &parts));
  EXPECT_TRUE(changed.TakeUnsent().empty());
}

TEST(SentFilesTest, NamesThatLeadElsewhereAreRefused) {
  const TempFolder folder;
  SentFiles sent(folder.path());
  const std::vector<std::string> names = {"",
                                          "/etc/passwd",
                                          "../a",
                                          "logs/../a",
                                          "logs/",
                                          "a/b",
                                          ".hidden",
                                          "logs/.hidden",
                                          "cluster.textproto",
                                          std::string("a\0b", 3),
                                          std::string(300, 'a')};
  for (const std::string& name : names) {
    agent::FilePart part;
    part.set_name(name);
    part.set_anew(true);
    part.set_complete(true);
    EXPECT_FALSE(sent.Add("h1", part).ok()) << name;
  }
  agent::FilePart large;
  large.set_name("a.json");
  large.set_data(std::string(kFilePartBytesMax + 1, 'x'));
  EXPECT_FALSE(sent.Add("h1", large).ok());
}

TEST(SentFilesTest, AFileOfAnotherHostWithTheSameNameIsBesideIt) {
  const TempFolder folder;
  SentFiles sent(folder.path());
  agent::FilePart part;
  part.set_name("own.json");
  part.set_anew(true);
  part.set_complete(true);
  for (const char* const host : {"h1", "h2"}) {
    part.set_data(host);
    ASSERT_TRUE(sent.Add(host, part).ok());
  }
  EXPECT_EQ(Get(folder.path() + "/own.json"), "h1");
  EXPECT_EQ(Get(folder.path() + "/from-h2/own.json"), "h2");
}

}  // namespace slackline::agent_messages_test
