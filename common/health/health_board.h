// Where the threads of a process write how they are, and its health page reads
// it: so that the page waits for none of them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "common/health/health.h"
#include "common/mutex.h"
#include "proto/control.pb.h"
#include "proto/run.pb.h"

namespace slackline {

// Thread-safe. Each call takes well below a microsecond.
class HealthBoard {
 public:
  HealthBoard(const std::string& role, int index, absl::Time now) {
    facts_.role = role;
    facts_.index = index;
    facts_.stage_since = now;
  }

  // What the thread that keeps the process in the job knows, whenever it looks
  // for messages. As in HealthFacts.
  struct Look {
    HealthStage stage = HealthStage::kJoining;
    std::optional<int64_t> clock = {};
    std::string doing = {};
    std::optional<absl::Time> still_since = {};
  };
  void Looked(Look look, absl::Time now) {
    const MutexLock lock(mutex_);
    if (look.stage != facts_.stage) facts_.stage_since = now;
    facts_.stage = look.stage;
    facts_.clock = look.clock;
    facts_.doing = std::move(look.doing);
    facts_.still_since = look.still_since;
    facts_.looked_at = now;
  }

  HealthFacts Read() const {
    const MutexLock lock(mutex_);
    return facts_;
  }

  // What the process has counted; of server 0, or whoever leads, also of the
  // job. nullptr: nothing yet.
  struct Figures {
    std::shared_ptr<const run::ServerStats> server = nullptr;
    std::shared_ptr<const run::WorkerStats> worker = nullptr;
    std::shared_ptr<const wire::StatusReply> job = nullptr;
  };
  void Counted(std::shared_ptr<const run::ServerStats> stats) {
    const MutexLock lock(mutex_);
    figures_.server = std::move(stats);
  }
  void Counted(std::shared_ptr<const run::WorkerStats> stats) {
    const MutexLock lock(mutex_);
    figures_.worker = std::move(stats);
  }
  void Counted(std::shared_ptr<const wire::StatusReply> status) {
    const MutexLock lock(mutex_);
    figures_.job = std::move(status);
  }
  Figures ReadFigures() const {
    const MutexLock lock(mutex_);
    return figures_;
  }

 private:
  mutable Mutex mutex_;
  HealthFacts facts_ ABSL_GUARDED_BY(mutex_);
  Figures figures_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
