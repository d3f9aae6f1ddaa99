#include "common/inspection/python_dump.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/shortened.h"

namespace slackline {
namespace {

// Python itself cuts names at 500 bytes.
constexpr size_t kPythonNameBytesMax = 520;
constexpr size_t kPlaceNameBytesMax = 80;

// Python writes ASCII, and other characters as escapes.
std::string NameOf(absl::string_view text) {
  std::string name = Shortened(text, kPythonNameBytesMax);
  absl::c_replace_if(
      name, [](char c) { return !absl::ascii_isprint(c); }, '?');
  return name;
}

// `  File "NAME", line 12 in FUNCTION`; nullopt: it is no such line. The name
// may have anything in it, the function has no quotation marks.
std::optional<PythonFrame> FrameOf(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, "  File ")) return std::nullopt;
  constexpr absl::string_view kLine = ", line ";
  const size_t at = line.rfind(kLine);
  if (at == absl::string_view::npos) return std::nullopt;
  absl::string_view name = line.substr(0, at);
  absl::string_view rest = line.substr(at + kLine.size());
  absl::ConsumePrefix(&name, "\"");
  absl::ConsumeSuffix(&name, "\"");
  const size_t in = rest.find(" in ");
  if (in == absl::string_view::npos) return std::nullopt;
  PythonFrame frame;
  frame.file = NameOf(name);
  // "???" where it is not known.
  if (!absl::SimpleAtoi(rest.substr(0, in), &frame.line) || frame.line < 0)
    frame.line = 0;
  frame.function = NameOf(rest.substr(in + 4));
  return frame;
}

bool IsIn(const PythonFrame& frame, absl::string_view end_of_file,
          absl::string_view function) {
  return absl::EndsWith(frame.file, end_of_file) && frame.function == function;
}

// In the process of a DataLoader everything below this frame is loading.
bool IsLoaderLoop(const PythonFrame& frame) {
  return IsIn(frame, "torch/utils/data/_utils/worker.py", "_worker_loop");
}

bool IsFetch(const PythonFrame& frame) {
  return absl::EndsWith(frame.file, "torch/utils/data/_utils/fetch.py");
}

bool IsFile(const PythonFrame& frame) {
  return !absl::StartsWith(frame.file, "<");
}

bool IsOfLibrary(const PythonFrame& frame, const PythonLibraries& libraries) {
  const std::string& file = frame.file;
  if (absl::StrContains(file, "/site-packages/") ||
      absl::StrContains(file, "/dist-packages/") ||
      absl::StartsWith(file, "<frozen ")) {
    return true;
  }
  return absl::c_any_of(libraries, [&file](const std::string& folder) {
    return !folder.empty() && absl::StartsWith(file, folder) &&
           file.size() > folder.size() && file[folder.size()] == '/';
  });
}

std::string PlaceText(const PythonFrame& frame) {
  const size_t slash =
      IsFile(frame) ? frame.file.rfind('/') : std::string::npos;
  const std::string name =
      slash == std::string::npos ? frame.file : frame.file.substr(slash + 1);
  return absl::StrCat(
      Shortened(name, kPlaceNameBytesMax), " line ",
      frame.line > 0 ? absl::StrCat(frame.line) : std::string("?"), ", in ",
      Shortened(frame.function, kPlaceNameBytesMax));
}

}  // namespace

PythonDump ParsePythonDump(absl::string_view text) {
  PythonDump dump;
  bool left_out = false;  // Frames that come now are of a thread beyond ours.
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const absl::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const bool current = absl::StartsWith(line, "Current thread 0x");
    if (current || absl::StartsWith(line, "Thread 0x")) {
      left_out = dump.threads.size() >= kPythonThreadsMax;
      dump.more_threads |= left_out;
      if (!left_out) dump.threads.emplace_back().current = current;
      continue;
    }
    if (line == "...") dump.more_threads = true;
    if (left_out || dump.threads.empty()) continue;
    PythonThread& thread = dump.threads.back();
    if (line == "  ...") thread.more_frames = true;
    std::optional<PythonFrame> frame = FrameOf(line);
    if (!frame.has_value()) continue;
    if (thread.frames.size() < kPythonFramesMax) {
      thread.frames.push_back(*std::move(frame));
    } else {
      thread.more_frames = true;
    }
  }
  return dump;
}

const PythonThread* MainThreadOf(const PythonDump& dump) {
  // The last one: a dump that came late may be before this one.
  for (auto thread = dump.threads.rbegin(); thread != dump.threads.rend();
       ++thread) {
    if (thread->current) return &*thread;
  }
  if (dump.threads.empty() || dump.more_threads) return nullptr;
  return &dump.threads.back();
}

std::string PlaceOf(const PythonThread& thread,
                    const PythonLibraries& libraries) {
  const auto end = absl::c_find_if(thread.frames, IsLoaderLoop);
  const auto own =
      std::find_if(thread.frames.begin(), end, [&](const PythonFrame& frame) {
        return IsFile(frame) && !IsOfLibrary(frame, libraries);
      });
  if (own != end) return PlaceText(*own);
  const auto typed =
      std::find_if(thread.frames.begin(), end, [&](const PythonFrame& frame) {
        return !IsFile(frame) && !IsOfLibrary(frame, libraries);
      });
  if (typed != end) return PlaceText(*typed);
  const auto fetch = std::find_if(thread.frames.begin(), end, IsFetch);
  if (fetch != end && fetch != thread.frames.begin())
    return PlaceText(*std::prev(fetch));
  return "";
}

bool WaitsForLoader(const PythonThread& thread) {
  return absl::c_any_of(thread.frames, [](const PythonFrame& frame) {
    return IsIn(frame, "torch/utils/data/dataloader.py", "_get_data") ||
           IsIn(frame, "torch/utils/data/dataloader.py", "_try_get_data");
  });
}

bool IsLoader(const PythonThread& thread) {
  return absl::c_any_of(thread.frames, IsLoaderLoop);
}

bool IsIdleLoader(const PythonThread& thread) {
  const auto loop = absl::c_find_if(thread.frames, IsLoaderLoop);
  return loop != thread.frames.end() && loop != thread.frames.begin() &&
         IsIn(*std::prev(loop), "multiprocessing/queues.py", "get");
}

std::string FramesText(const PythonThread& thread, size_t frames_max) {
  std::string text;
  const size_t count = std::min(thread.frames.size(), frames_max);
  for (size_t i = 0; i < count; ++i) {
    const PythonFrame& frame = thread.frames[i];
    absl::StrAppend(&text, "  File \"", frame.file, "\", line ",
                    frame.line > 0 ? absl::StrCat(frame.line) : "?", ", in ",
                    frame.function, "\n");
  }
  if (count < thread.frames.size() || thread.more_frames)
    absl::StrAppend(&text, "  and those that called it\n");
  if (thread.frames.empty())
    absl::StrAppend(&text, "  not in any Python code\n");
  return text;
}

}  // namespace slackline
