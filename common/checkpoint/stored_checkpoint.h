// A checkpoint that is read: checked whole, then its shards, split in any way.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/part_file.h"
#include "common/checkpoint/shard_state.h"
#include "proto/checkpoint.pb.h"

namespace slackline {

class StoredCheckpoint final : public StoredShards {
 public:
  // Reads the manifest and all bytes of all files once. DataLoss names the file
  // and the offset of what is missing, torn or changed; the tables are there
  // whole, once. NotFound: there is no manifest. The parts stay open, so that
  // they are there when others remove the checkpoint.
  static absl::StatusOr<std::unique_ptr<StoredCheckpoint>> Open(
      const std::string& folder);

  const std::string& folder() const { return folder_; }
  const checkpoint::Manifest& manifest() const { return manifest_; }
  // As ManifestSha256().
  const std::string& sha256() const { return sha256_; }
  int64_t bytes() const;  // Of all parts, and of what programs keep.

  // Shards that are read whole are checked again. NotFound: there is no such
  // table, or it has no such elements. DataLoss: the table is in another form.
  absl::StatusOr<ShardState> Read(const std::string& table,
                                  const Region& region,
                                  const TensorForm& form) const override;
  // The values of a table that is floats, without the slots.
  absl::StatusOr<Payload> ReadValues(const std::string& table,
                                     const Region& region) const;

 private:
  struct Place {
    const PartFile* file = nullptr;
    const PartFile::Piece* piece = nullptr;
  };
  struct Pieces {  // Of one table.
    Region whole;
    int slots = 0;
    std::map<Region, Place> places = {};
  };
  StoredCheckpoint() = default;
  absl::Status PlacePieces(const PartFile& file);
  absl::Status CheckWhole() const;
  absl::StatusOr<ShardState> ReadTensors(const std::string& table,
                                         const Region& region,
                                         const TensorForm& form,
                                         bool with_slots) const;

  std::string folder_;
  checkpoint::Manifest manifest_;
  std::string sha256_;
  std::vector<std::unique_ptr<PartFile>> parts_;
  std::map<std::string, Pieces> tables_;
};

}  // namespace slackline
