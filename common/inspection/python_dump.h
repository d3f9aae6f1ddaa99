// What Python's faulthandler writes of the threads of a process, and where in
// the program's own code they are.
//
// Pure functions. A dump is text from another process: whatever it is, it makes
// no more than the bounds below.
#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace slackline {

struct PythonFrame {
  std::string file;
  int line = 0;  // 0: it is not known.
  std::string function;
};

struct PythonThread {
  bool current = false;             // The one that has taken the signal.
  std::vector<PythonFrame> frames;  // The innermost one first.
  bool more_frames = false;         // Python leaves out those beyond 100.
};

struct PythonDump {
  std::vector<PythonThread> threads;  // The newest one first, as Python has it.
  bool more_threads = false;          // Python has shown only some of them.
};

inline constexpr size_t kPythonThreadsMax = 128;
inline constexpr size_t kPythonFramesMax = 128;  // Of a thread.

// Lines of another form are passed over.
PythonDump ParsePythonDump(absl::string_view text);

// The thread that has taken the signal, which is sent to the main thread. If
// there is none, the oldest one. nullptr: Python has left it out.
const PythonThread* MainThreadOf(const PythonDump& dump);

// Where Python's own modules and this package are: folders, without the last
// slash. Those of packages (site-packages, dist-packages) need not be in it.
using PythonLibraries = std::vector<std::string>;

// "train.py line 41, in load": the innermost frame that is of no library; if
// there is none, of text that is no file. Empty: there is neither. In a process
// that a DataLoader has started, what the script did before that does not
// count, and if all below is of libraries, it is the data set's own frame.
std::string PlaceOf(const PythonThread& thread,
                    const PythonLibraries& libraries);

// It is where a DataLoader waits for the processes that it has started.
bool WaitsForLoader(const PythonThread& thread);
// It is a process that a DataLoader has started, whether it loads or waits.
bool IsLoader(const PythonThread& thread);
// Such a process waits to be told what to load.
bool IsIdleLoader(const PythonThread& thread);

// `  File "train.py", line 41, in load`, one line for each frame, at most
// `frames_max`.
std::string FramesText(const PythonThread& thread, size_t frames_max);

}  // namespace slackline
