// Checkpoints without files: what processes have written of a cut, what became
// of it, and where the servers of another job read it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/shard_state.h"
#include "proto/checkpoint.pb.h"

namespace slackline::sim {

// A completed one.
struct SimCheckpoint {
  checkpoint::Manifest manifest;
  std::vector<ShardState> shards;           // Of all parts.
  std::map<int32_t, std::string> programs;  // By rank.

  // Stands for the hash that the servers tell each other.
  std::string Name() const;
};

// What a worker's program keeps after its step of this clock.
std::string ProgramAfter(int32_t rank, int64_t clock);

// The folder that all processes of a run share.
class SimFolder {
 public:
  // The part of a cut is on the disk, with the bytes that its tensors have now.
  // What it is to say to the coordinator.
  checkpoint::Part Write(int32_t cut, const std::string& file,
                         const std::vector<ShardState>& shards);
  // The same of what a program keeps.
  checkpoint::Kept WriteKept(int32_t cut, int32_t rank,
                             const std::string& bytes);
  // All parts of the manifest are there: they are a checkpoint now. NotFound
  // names a part that is not there, or is another one.
  absl::StatusOr<std::shared_ptr<const SimCheckpoint>> Complete(
      int32_t cut, const checkpoint::Manifest& manifest);
  // The cut was given up.
  void Remove(int32_t cut) {
    parts_.erase(cut);
    programs_.erase(cut);
  }

  const std::vector<std::shared_ptr<const SimCheckpoint>>& completed() const {
    return completed_;
  }

 private:
  struct Part {
    checkpoint::Part said;
    std::vector<ShardState> shards;
  };
  std::map<int32_t, std::map<std::string, Part>> parts_;  // By cut and file.
  // Likewise.
  std::map<int32_t, std::map<std::string, std::string>> programs_;
  uint64_t written_ = 0;
  std::vector<std::shared_ptr<const SimCheckpoint>> completed_;
};

// What servers read that go on from it.
class SimStoredShards final : public StoredShards {
 public:
  explicit SimStoredShards(std::shared_ptr<const SimCheckpoint> checkpoint)
      : checkpoint_(std::move(checkpoint)) {}
  absl::StatusOr<ShardState> Read(const std::string& table,
                                  const Region& region,
                                  const TensorForm& form) const override;

 private:
  const std::shared_ptr<const SimCheckpoint> checkpoint_;
};

}  // namespace slackline::sim
