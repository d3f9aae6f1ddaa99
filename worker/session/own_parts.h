// OwnParts: what one worker writes of checkpoints, and begins with from one:
// the model where steps are by all-reduce, and what no other worker has, which
// is the state of its program and what compression has kept of its gradients.
//
// Files are written by a thread of its own while the steps go on; the core is
// told of each part by WorkerCore::OnCutPart, whether it was written or not, so
// that nothing here fails the worker. Otherwise of the session's thread alone.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/part_writer.h"
#include "common/compress/gradient_compressor.h"
#include "common/config/cluster_config.h"
#include "common/ids.h"
#include "common/timeline/recorder.h"
#include "worker/memory/parameter_memory.h"
#include "worker/session/replica.h"
#include "worker/session/worker_loop.h"

namespace slackline {

class OwnParts {
 public:
  struct Options {
    const config::ClusterConfig& config;
    std::string out;  // As Session::Options::out.
    Rank rank{};
    bool keeps_state = false;  // The program has state of its own.
    TimelineTrack* track = nullptr;
  };
  // All that is handed over outlives it.
  OwnParts(const Options& options, WorkerLoop* loop,
           const ParameterMemory* parameters);

  // Copies the model of step `clock`, which is by all-reduce, and writes the
  // copy.
  void WriteState(int32_t cut, Clock clock, Replica& replica);

  // Writes what no other worker has; if the program has state of its own, once
  // Kept() has been called with that.
  void WriteOwn(const WorkerCore::KeepProgram& keep,
                std::vector<GradientCompressor::Residual> residuals);
  // That the program is to keep its state for a cut, told once: when it asks
  // for its next task, since before it may be at the end of a step.
  std::optional<WorkerCore::KeepProgram> Ask();
  // The program's answer. Ignored unless it is of the cut that was asked for.
  void Kept(int32_t cut, absl::StatusOr<std::string> state);

  // What this worker had in the checkpoint that the job goes on from:
  // `*compressor` has what it had kept then, and the program's state is
  // returned; nullopt: there is none. Errors as of FindKept(), and of
  // GradientCompressor::GoOnWith().
  absl::StatusOr<std::optional<std::string>> Find(
      GradientCompressor* compressor);

 private:
  // A part that waits for the program's state.
  struct Waiting {
    WorkerCore::KeepProgram keep;
    std::vector<GradientCompressor::Residual> residuals;
    bool asked = false;  // Whether the program has been asked for it.
  };

  // `program` without a value: it keeps nothing.
  void Write(Waiting of,
             const absl::StatusOr<std::optional<std::string>>& program);
  absl::Status BeginWith(const std::vector<ShardState>& residuals,
                         GradientCompressor* compressor) const;
  // The folder in which the parts of a cut are collected.
  absl::StatusOr<std::string> FolderOf(int32_t cut) const;
  void Tell(const wire::CutPart& part);
  PartWriter& writer();

  const Options options_;
  WorkerLoop& loop_;
  const ParameterMemory& parameters_;
  std::optional<Waiting> waiting_;
  // Made with the first part. Ends first: its thread tells the loop.
  std::unique_ptr<PartWriter> writer_;
};

}  // namespace slackline
