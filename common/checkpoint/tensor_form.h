// TensorForm: how the tensors of a table's shards are in files -- the values,
// the optimizer slots, and what turns keep -- and how those of some pieces of
// the table become one of a region, which may be split otherwise. What keeps a
// shard says which form its tensors have; whoever writes or reads files asks.
//
// Immutable; any thread may call anything.
#pragma once

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/payload.h"
#include "common/region.h"

namespace slackline {

class TensorForm {
 public:
  virtual ~TensorForm() = default;

  // A tensor is a float for each element, and files say so, so that others can
  // read it. Else it is bytes to everybody but the form.
  virtual bool IsFloats() const = 0;

  // A tensor of a piece, which is read where it lies.
  struct Piece {
    Region region;
    size_t bytes = 0;
    std::function<absl::Status(size_t offset, absl::Span<std::byte> to)> read;
  };
  // The tensor of `region`, of at least one byte. The pieces cover it, and each
  // has something of it; they are in the order of the table. Reads each piece
  // in the order of its bytes, and none of them twice: their hash is that of a
  // stream. DataLoss: a piece is not in this form. ResourceExhausted: there is
  // no memory for the tensor. Other errors are those of reading.
  virtual absl::StatusOr<Payload> Join(
      const Region& region, absl::Span<const Piece> pieces) const = 0;
};

// That of a float for each element.
const TensorForm& FloatsForm();

}  // namespace slackline
