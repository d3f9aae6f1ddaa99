// A timeline of a job from its first step on, for `slackline run --timeline`: a
// thread beside the one that follows the job, with a connection of its own.
#pragma once

#include <atomic>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "common/keys/key_watch.h"

namespace slackline {

class TimelineOfRun {
 public:
  struct Options {
    std::vector<std::string> endpoints;  // As CoordinatorClient::Connect().
    std::string job;
    std::optional<KeySource> keys;
    absl::Duration time;
    std::string folder;  // For the file.
  };
  // Asks as soon as somebody has joined.
  explicit TimelineOfRun(const Options& options)
      : options_(options), thread_([this] { Run(); }) {}
  ~TimelineOfRun() { (void)Finish(); }

  // Once the recording has come in: what to tell the user, as of
  // TimelineCollection::Finish(), or why there is no timeline. Empty before
  // that, and after it.
  std::string Take();
  // Once the job has ended: the same of a recording that ends now.
  std::string Finish();

 private:
  void Run();
  std::string Collect();

  const Options options_;
  std::atomic<bool> stopping_{false};
  std::atomic<bool> has_ended_{false};  // said_ is there.
  std::string said_;                    // Of the thread, until it has ended.
  std::thread thread_;
};

}  // namespace slackline
