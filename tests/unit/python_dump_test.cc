// Goal: of what faulthandler writes, the place in the script's own code is
// found, whatever stands around it, and text of any kind does no harm. Method:
// dumps as Python 3.11 and PyTorch make them, and broken ones.
#include "common/inspection/python_dump.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace slackline::python_dump_test {

using ::testing::HasSubstr;

const PythonLibraries kLibraries = {"/usr/lib/python3.11",
                                    "/opt/build/slackline"};

constexpr char kOther[] =
    "Thread 0x00007f3664bff6c0 (most recent call first):\n"
    "  File \"/usr/lib/python3.11/threading.py\", line 320 in wait\n"
    "  File \"/home/u/watch.py\", line 7 in watch\n"
    "\n";
constexpr char kHeader[] =
    "Current thread 0x00007f3686da3040 (most recent call first):\n";
constexpr char kWaitsForLoader[] =
    "  File \"/usr/lib/python3.11/selectors.py\", line 415 in select\n"
    "  File \"/usr/lib/python3.11/multiprocessing/queues.py\", line 113 in "
    "get\n"
    "  File \"/v/site-packages/torch/utils/data/dataloader.py\", line 1120 in "
    "_try_get_data\n"
    "  File \"/opt/build/slackline/_loader.py\", line 60 in __next__\n"
    "  File \"/home/u/train.py\", line 27 in <module>\n";
// What a process that was forked has above its own.
constexpr char kLoop[] =
    "  File \"/v/site-packages/torch/utils/data/_utils/worker.py\", line 302 "
    "in "
    "_worker_loop\n"
    "  File \"/usr/lib/python3.11/multiprocessing/process.py\", line 108 in "
    "run\n"
    "  File \"/v/site-packages/torch/utils/data/dataloader.py\", line 1034 in "
    "__init__\n"
    "  File \"/home/u/train.py\", line 27 in <module>\n";
constexpr char kFetch[] =
    "  File \"/v/site-packages/torch/utils/data/_utils/fetch.py\", line 58 in "
    "<listcomp>\n"
    "  File \"/v/site-packages/torch/utils/data/_utils/fetch.py\", line 58 in "
    "fetch\n";

std::string PlaceIn(const std::string& frames) {
  const PythonDump dump =
      ParsePythonDump(absl::StrCat(kOther, kHeader, frames));
  const PythonThread* const main = MainThreadOf(dump);
  return main == nullptr ? "none" : PlaceOf(*main, kLibraries);
}

TEST(PythonDumpTest, ThePlaceIsTheInnermostOfTheScript) {
  const struct {
    const char* name;
    std::string frames;
    const char* place;
  } cases[] = {
      {"its own line",
       "  File \"/home/u/data.py\", line 41 in load\n"
       "  File \"/home/u/train.py\", line 7 in <module>\n",
       "data.py line 41, in load"},
      {"in a library",
       "  File \"/usr/lib/python3/dist-packages/torch/nn/linear.py\", line 3 "
       "in f\n"
       "  File \"<frozen importlib._bootstrap>\", line 241 in _call\n"
       "  File \"/home/u/train.py\", line 7 in <module>\n",
       "train.py line 7, in <module>"},
      {"beside a library, in a folder of a similar name",
       "  File \"/usr/lib/python3.11x/mine.py\", line 3 in f\n",
       "mine.py line 3, in f"},
      {"in text that was made, called by a file",
       "  File \"<string>\", line 3 in __init__\n"
       "  File \"/home/u/train.py\", line 7 in <module>\n",
       "train.py line 7, in <module>"},
      {"in text alone", "  File \"<string>\", line 3 in <module>\n",
       "<string> line 3, in <module>"},
      {"of libraries alone",
       "  File \"/usr/lib/python3.11/runpy.py\", line 3 in run\n", ""},
      {"with a line that is not known",
       "  File \"/home/u/train.py\", line ??? in f\n", "train.py line ?, in f"},
      {"with quotes and more in its name",
       "  File \"/home/u/a\", line 3 in b.py\", line 8 in f\n",
       "a\", line 3 in b.py line 8, in f"},
      {"waits for its loader", kWaitsForLoader,
       "train.py line 27, in <module>"},
      {"loads in its own code",
       absl::StrCat("  File \"/home/u/train.py\", line 11 in __getitem__\n",
                    kFetch, kLoop),
       "train.py line 11, in __getitem__"},
      {"loads in a library's data set",
       absl::StrCat(
           "  File \"/v/site-packages/PIL/Image.py\", line 9 in open\n"
           "  File \"/v/site-packages/torchvision/folder.py\", line 229 in "
           "__getitem__\n",
           kFetch, kLoop),
       "folder.py line 229, in __getitem__"},
      {"waits to be told what to load",
       absl::StrCat("  File \"/usr/lib/python3.11/multiprocessing/queues.py\", "
                    "line 113 in get\n",
                    kLoop),
       ""},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.name);
    EXPECT_EQ(PlaceIn(each.frames), each.place);
  }
}

TEST(PythonDumpTest, KnowsWhoWaitsForLoadersAndWhichLoadersWait) {
  const auto main_of = [](const std::string& frames) {
    return ParsePythonDump(absl::StrCat(kHeader, frames)).threads.at(0);
  };
  const PythonThread waits = main_of(kWaitsForLoader);
  EXPECT_TRUE(WaitsForLoader(waits));
  EXPECT_FALSE(IsLoader(waits));
  const PythonThread loads = main_of(absl::StrCat(kFetch, kLoop));
  EXPECT_TRUE(IsLoader(loads));
  EXPECT_FALSE(IsIdleLoader(loads));
  EXPECT_FALSE(WaitsForLoader(loads));
  EXPECT_TRUE(IsIdleLoader(main_of(
      absl::StrCat("  File \"/usr/lib/python3.11/multiprocessing/queues.py\", "
                   "line 113 in get\n",
                   kLoop))));
}

TEST(PythonDumpTest, TheMainThreadIsTheOneThatTookTheSignalOrTheOldest) {
  const auto place = [](const std::string& text) {
    const PythonDump dump = ParsePythonDump(text);
    const PythonThread* const main = MainThreadOf(dump);
    return main == nullptr ? "none" : PlaceOf(*main, kLibraries);
  };
  const std::string own = "  File \"/home/u/train.py\", line 7 in f\n";
  const std::string thread =
      "Thread 0x00007f3686da3040 (most recent call first):\n";
  EXPECT_EQ(place(absl::StrCat(kOther, kHeader, own)), "train.py line 7, in f");
  EXPECT_EQ(place(absl::StrCat(kHeader, own, kOther)), "train.py line 7, in f");
  EXPECT_EQ(place(absl::StrCat(kOther, thread, own)), "train.py line 7, in f");
  // A dump that came late is before this one.
  EXPECT_EQ(
      place(absl::StrCat(kHeader, "  File \"/home/u/old.py\", line 1 in g\n",
                         kHeader, own)),
      "train.py line 7, in f");
  // The main thread is the oldest, and Python leaves out the oldest ones.
  EXPECT_EQ(place(absl::StrCat(kOther, "...\n")), "none");
  EXPECT_EQ(place(""), "none");
}

TEST(PythonDumpTest, TextOfAnyKindStaysWithinBounds) {
  for (const std::string& text :
       {std::string("\n\n\n"), std::string("  File "), std::string("Thread 0x"),
        absl::StrCat(kHeader,
                     "  File \"\xff\x01\", line 99999999999 in \xc3\n"),
        absl::StrCat(kHeader, "  File \"", std::string(9000, 'x'),
                     "\", line 3 in ", std::string(9000, 'y'), "\n")}) {
    for (const PythonThread& thread : ParsePythonDump(text).threads) {
      const std::string shown = FramesText(thread, 10);
      EXPECT_LT(shown.size(), 1200u);
      for (const char c : shown)
        EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~'));
      EXPECT_LT(PlaceOf(thread, kLibraries).size(), 250u);
    }
  }
  std::string many;
  for (int i = 0; i < 1000; ++i) absl::StrAppend(&many, kOther);
  EXPECT_EQ(ParsePythonDump(many).threads.size(), kPythonThreadsMax);
  EXPECT_TRUE(ParsePythonDump(many).more_threads);
  std::string deep = kHeader;
  for (int i = 0; i < 1000; ++i)
    absl::StrAppend(&deep, "  File \"/home/u/train.py\", line 3 in f\n");
  const PythonDump dump = ParsePythonDump(deep);
  EXPECT_EQ(dump.threads.at(0).frames.size(), kPythonFramesMax);
  EXPECT_THAT(FramesText(dump.threads.at(0), 2),
              HasSubstr("and those that called it"));
}

}  // namespace slackline::python_dump_test
