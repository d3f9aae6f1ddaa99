// The connection of `slackline run` to the agent on one host.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/io/descriptor.h"
#include "common/mutex.h"
#include "proto/agent.pb.h"
#include "tools/cli/agent/agent_frames.h"
#include "tools/cli/agent/sent_files.h"
#include "tools/cli/process.h"

namespace slackline {

// A thread of its own reads what the agent says, and writes the files that it
// sends. All calls are of the thread that made it. Its end closes the agent's
// stdin, upon which the agent kills its processes, and waits until it is gone.
class AgentLink {
 public:
  // Starts `command`, which leads to the agent: its stdin and stdout are those
  // of the agent. `program`, its first word, is looked for in PATH.
  static absl::StatusOr<std::unique_ptr<AgentLink>> Start(
      const std::string& host, std::vector<std::string> command);
  ~AgentLink();
  AgentLink(const AgentLink&) = delete;
  AgentLink& operator=(const AgentLink&) = delete;

  const std::string& host() const { return host_; }
  // Where files that come from here on are written to; before, they are
  // refused. Outlives the link.
  void WriteFilesTo(SentFiles* files);

  // Returns the number of the request that this is.
  uint32_t Send(agent::ToAgent message);
  // nullopt: it has not come yet.
  std::optional<agent::Hello> hello();
  std::optional<agent::Answer> TakeAnswer(uint32_t request);
  // Returns when something has come, at the latest after `wait_max`.
  void Wait(absl::Duration wait_max);
  // Those of processes that have ended, since the last call.
  std::vector<agent::Exit> TakeExits();
  // Sentences for people, since the last call.
  std::vector<std::string> TakeNotes();

  // OK while the agent may be there. Then, for good, why it is not: what the
  // command has written to stderr is in the text.
  absl::Status Lost();
  // What the command has written to stderr, and to stdout before an agent
  // answered: a few KiB of its end, and the last lines of that in one.
  std::string ErrorText();
  std::string ErrorOutput();
  // Once Lost(): how the command has ended, if it has.
  const std::optional<ExitStatus>& exit() const { return exit_; }
  // Since something has come.
  absl::Duration SilentFor();
  // Of an agent that is not heard: it counts as lost at once.
  void GiveUp();
  // Ends the stream: the agent kills its processes. The destructor waits.
  void Close();

 private:
  AgentLink(std::string host, Descriptor to, Descriptor from, Descriptor errors,
            Descriptor wake, ChildProcess child);
  void Loop();
  // False: nothing more comes.
  bool ReadSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool WriteSome() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void OnMessage(agent::FromAgent message)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // For the files that could not be written.
  void AskAgain(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string host_;
  const Descriptor from_;
  const Descriptor errors_;  // A file in memory.
  const Descriptor wake_;    // An eventfd: there is something to write.
  // These belong to the thread that made the link.
  ChildProcess child_;
  std::optional<ExitStatus> exit_;
  absl::Status lost_;

  Mutex mutex_;
  std::condition_variable changed_;
  Descriptor to_ ABSL_GUARDED_BY(mutex_);
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // Nothing more comes.
  absl::Time heard_ ABSL_GUARDED_BY(mutex_);
  std::string why_over_ ABSL_GUARDED_BY(mutex_);
  std::string waiting_ ABSL_GUARDED_BY(mutex_);  // To be written.
  uint32_t requests_ ABSL_GUARDED_BY(mutex_) = 0;
  AgentFrameReader reader_ ABSL_GUARDED_BY(mutex_){/*after_greeting=*/true};
  std::optional<agent::Hello> hello_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, agent::Answer> answers_ ABSL_GUARDED_BY(mutex_);
  std::vector<agent::Exit> exits_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> notes_ ABSL_GUARDED_BY(mutex_);
  SentFiles* files_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool said_unwritten_ ABSL_GUARDED_BY(mutex_) = false;
  // Names of files, and when each is asked for again.
  std::map<std::string, absl::Time> again_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;  // The last member: it uses all others.
};

}  // namespace slackline
