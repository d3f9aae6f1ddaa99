// What processes write into the folder of a run, in pieces that can be sent
// while it grows.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "proto/agent.pb.h"

namespace slackline {

// The most that one part has.
inline constexpr size_t kFilePartBytesMax = 256 << 10;

// Looks at the regular files in a folder, and at logs that are named; of
// folders in it, as of checkpoints, nothing is sent. Nor are the config and
// keys, which were sent to this host; nor the coordinator's state and files
// with ".partial-" in their names, which are of use to processes of this host
// alone. Thread-compatible.
class ChangedFiles {
 public:
  // What is there now has been there before: sent when it changes. `all`: files
  // beside the logs are sent, too.
  ChangedFiles(std::string folder, bool all);
  // A file in logs/ of the folder, "logs/worker-2.log".
  void AddLog(const std::string& name) { logs_.insert(name); }

  // Files whose names no message can have, each once.
  std::vector<std::string> TakeUnsent();
  // What was sent of the file has not arrived.
  void SendAgain(const std::string& name);

  // Appends what has changed, at most about `bytes_max`. True: that is all.
  bool Look(size_t bytes_max, std::vector<agent::FilePart>* parts);

 private:
  struct File {
    ino_t inode = 0;
    int64_t born_ns = 0;     // An inode's number is given again; 0: not known.
    int64_t size = 0;        // At the last look.
    int64_t changed_ns = 0;  // Of its content, at the last look.
    int64_t sent = -1;       // Bytes; -1: nothing of this file.
    bool is_old = false;     // As it was at the beginning.
  };
  std::vector<std::string> Names();
  // Whether all of it is sent.
  bool Send(const std::string& name, size_t* bytes_left,
            std::vector<agent::FilePart>* parts);

  const std::string folder_;
  const bool all_;
  std::set<std::string> logs_;
  std::map<std::string, File> files_;
  std::set<std::string> unsent_;
  std::set<std::string> said_unsent_;
};

// Whether a part may name its file so: one name, or one in logs/.
bool IsSentName(const std::string& name);

}  // namespace slackline
