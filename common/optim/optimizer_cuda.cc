#include "common/optim/optimizer_cuda.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/cuda/cuda_status.h"
#include "common/optim/update_cuda.h"
#include "common/status.h"

namespace slackline {

absl::Status ApplyAsync(const Optimizer& optimizer,
                        const Optimizer::ApplyArgs& args, CUstream_st* stream) {
  SL_CHECK(!args.gradients.empty(), "an update needs at least one gradient");
  if (args.gradients.size() > optim::kCudaGradientsMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "update on a GPU: ", args.gradients.size(), " gradients, at most ",
        optim::kCudaGradientsMax, " are possible; sum some of them before"));
  }
  SL_CHECK(args.sum == nullptr, "a GPU gives no sum of the gradients");
  optim::CudaOperands operands;
  operands.in = args.in;
  operands.out = args.out;
  for (int slot = 0; slot < optimizer.slot_count(); ++slot) {
    SL_CHECK(args.slots[slot] != nullptr, absl::StrCat("slot ", slot));
    operands.slots[slot] = args.slots[slot];
  }
  for (const std::byte* gradient : args.gradients) {
    if (reinterpret_cast<uintptr_t>(gradient) % alignof(float) != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "update on a GPU: gradient ", operands.gradient_count, " is at ",
          absl::Hex(reinterpret_cast<uintptr_t>(gradient)),
          ", which is no multiple of ", alignof(float), "; copy it to one"));
    }
    operands.gradients[operands.gradient_count++] =
        reinterpret_cast<const float*>(gradient);
  }
  return CudaStatus(
      optim::UpdateAsync(optimizer.rule(), optimizer.CoefficientsOf(args),
                         operands, args.elements, stream),
      "launch of an optimizer's update");
}

}  // namespace slackline
