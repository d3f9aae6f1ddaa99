// KeyWatch: keeps the keys of a process as its key file says, while it runs.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/keys/credentials.h"
#include "common/keys/key_holder.h"
#include "common/keys/live_keys.h"
#include "common/mutex.h"

namespace slackline {

// Keys, and the file that says them.
struct KeySource {
  std::string file;
  std::string job;
  KeyHolder holder = Role::kReader;  // What this process is to be.
  int workers = 0;                   // As for KeyPlanFrom().
  KeyPlan plan;                      // As the file says now.
};

class KeyWatch {
 public:
  // Gets sentences without an end, from the follower's thread.
  using Say = std::function<void(bool warns, const std::string& text)>;

  // Begins to look at the file, once a second, in a thread of its own. A file
  // that goes away, or cannot be used, changes nothing.
  KeyWatch(const KeySource& source, Say say);
  // In a child of the process that made it it does nothing.
  ~KeyWatch();
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

  const std::shared_ptr<LiveKeys>& keys() const { return keys_; }

 private:
  void Run();
  void Look();

  const pid_t process_;
  const KeySource source_;
  const Say say_;
  const std::shared_ptr<LiveKeys> keys_;
  // Of thread_: what the file was like, and what was said last of it.
  std::string seen_;
  std::string said_;
  absl::Time said_from_;
  // What the thread waits at. A child of the process leaves it as it is: there
  // the thread waits for ever.
  struct Waiting {
    Mutex mutex;
    bool ends ABSL_GUARDED_BY(mutex) = false;
    std::condition_variable wake;
    std::thread thread;
  };
  std::unique_ptr<Waiting> waiting_ = std::make_unique<Waiting>();
};

}  // namespace slackline
