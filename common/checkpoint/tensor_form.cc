#include "common/checkpoint/tensor_form.h"

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/with_memory.h"

namespace slackline {
namespace {

class Floats final : public TensorForm {
 public:
  bool IsFloats() const override { return true; }

  // Each piece is read to where it belongs.
  absl::StatusOr<Payload> Join(const Region& region,
                               absl::Span<const Piece> pieces) const override {
    Payload whole;
    SL_RETURN_IF_ERROR(WithMemory(
        region.DenseBytes(), absl::StrCat("elements ", region.Text()),
        [&] { whole = Payload::Allocate(region.DenseBytes()); }));
    for (const Piece& piece : pieces) {
      if (piece.bytes != piece.region.DenseBytes()) {
        return absl::DataLossError(absl::StrCat(
            "elements ", piece.region.Text(), " are a tensor of ", piece.bytes,
            " bytes; ", piece.region.DenseBytes(), " are required"));
      }
      const Region part = region.Overlap(piece.region);
      SL_RETURN_IF_ERROR(piece.read(
          piece.region.DenseOffset(part),
          {whole.MutableData() + region.DenseOffset(part), part.DenseBytes()}));
    }
    return whole;
  }
};

}  // namespace

const TensorForm& FloatsForm() {
  static const Floats form;
  return form;
}

}  // namespace slackline
