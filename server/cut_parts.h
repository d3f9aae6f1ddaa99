// CutParts: has the parts that the shard threads of a server give to a cut
// written, on a thread of its own, and says what has become of each.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "common/checkpoint/part_writer.h"
#include "common/time/time_source.h"
#include "common/timeline/recorder.h"
#include "proto/control.pb.h"
#include "server/shard/shard_core.h"

namespace slackline {

class CutParts {
 public:
  struct Options {
    int server = 0;
    // Of the checkpoints of the run: CheckpointRoot(). Empty: none can be
    // written, which is what is then told.
    std::string root;
    // Called for each part, on the thread of OnCut() or the writer's, but not
    // once the destructor has returned.
    std::function<void(wire::CutPart)> told;
    // Has a track for the parts of each shard thread; nullptr: there is none.
    // Outlives this.
    TimelineRecorder* timeline = nullptr;
    TimeSource time = {};
  };
  explicit CutParts(Options options) : options_(std::move(options)) {}

  // Any thread: what a shard thread has of a cut. A thread without shards has a
  // part without a file.
  void OnCut(int thread, ShardCore::CutState state);

 private:
  const Options options_;
  PartWriter writer_;
};

}  // namespace slackline
