// A part of a checkpoint: a safetensors file with some shards, each under the
// names "<table>[<begin>, <end>)" for the values and
// "<table>[<begin>, <end>)/<slot>" for the optimizer slots, 0, 1, ... The slots
// of a shard follow its values. The metadata has, under the first of these
// names, "version 12, hash 00000000000004d2": the shard's version and the
// StateHash() of its bits, so that others can read the tensors and we can see
// whether they are what was written. Where gradients have been measured there
// follows ", rms 3fb999999999999a of 120": the bits of RunningRms::mean(), and
// its count. In a job whose delays are given there follows ", turns 0802...": a
// wire::Turns as hexadecimal digits; its tensors are
// "<table>[<begin>, <end>)/turns/<number>", behind the slots. Tensors are F32
// with a number for each element, or, in a form that only their table's store
// knows, U8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/checkpoint/shard_state.h"
#include "common/io/descriptor.h"
#include "proto/checkpoint.pb.h"

namespace slackline {

// Writes `folder`/`file`, creating the folder if need be: under a temporary
// name, synced, renamed. The tensors are written from where they are. Errors
// name path, call and reason; InvalidArgument a shard whose tensors are not of
// its size. Without shards there is no file, and the part has no name.
absl::StatusOr<checkpoint::Part> WritePart(const std::string& folder,
                                           const std::string& file,
                                           absl::Span<const ShardState> shards);

// What is wrong with what a manifest says of a part, by itself: the name of its
// file, its numbers. Empty: nothing.
std::string WhyNoPart(const checkpoint::Part& part);

// A part that is read. Thread-safe. Open() reads the header alone.
class PartFile {
 public:
  // Where a shard lies, without its tensors.
  struct Piece {
    std::string table;
    Region region;
    Version version = 0;
    int slots = 0;
    int64_t offset = 0;  // Of the values in the file; the slots follow.
    std::vector<size_t> tensor_bytes = {};  // In the order of the file.
    uint64_t hash = 0;
    RunningRms running_rms = {};
    std::optional<wire::Turns> turns = {};
    bool floats = true;  // As in ShardState.

    // The values, the slots, and those of the turns.
    int tensors() const {
      return 1 + slots +
             (turns.has_value() ? static_cast<int>(TensorCount(*turns)) : 0);
    }
    int64_t bytes() const {
      return std::accumulate(tensor_bytes.begin(), tensor_bytes.end(),
                             int64_t{0});
    }
  };
  // DataLoss names file, offset and bound of what is not as `part` says.
  static absl::StatusOr<std::unique_ptr<PartFile>> Open(
      const std::string& folder, const checkpoint::Part& part);

  const std::string& path() const { return path_; }
  const std::vector<Piece>& pieces() const { return pieces_; }

  // DataLoss: the bytes are not those that were written. Takes no more memory
  // for a large piece than for a small one.
  absl::Status Check(const Piece& piece) const;
  absl::StatusOr<ShardState> Read(const Piece& piece) const;
  // Some bytes of the piece's values (tensor 0), of its slot tensor - 1, or,
  // behind the slots, of its turns. They are not checked: the hash is of all of
  // the piece.
  absl::Status ReadTensor(const Piece& piece, int tensor, size_t offset,
                          absl::Span<std::byte> to) const;
  // What Check() says of a piece with another hash.
  absl::Status Damaged(const Piece& piece, uint64_t hash) const;

 private:
  PartFile(std::string path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}
  // The pieces, from the header.
  absl::Status ReadHeader(const checkpoint::Part& part);
  absl::Status ReadAt(int64_t offset, size_t bytes, void* to) const;

  const std::string path_;
  const Descriptor file_;
  std::vector<Piece> pieces_;
};

}  // namespace slackline
