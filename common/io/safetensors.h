// Safetensors files (https://github.com/huggingface/safetensors, "Format"),
// which PyTorch and others load: an 8-byte little-endian header size, a JSON
// header with name, type, shape and place of each tensor, then the tensors'
// bytes. What is read has to be float32; what is written may have other types
// beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/io/typed_tensor.h"

namespace slackline {

// A tensor in the caller's memory.
struct TensorView {
  std::string name;                // Unique in its file, not "__metadata__".
  std::vector<int64_t> shape;      // Each at least 1; empty for one number.
  absl::Span<const float> values;  // Row-major; as many as the shape says.
};

struct Tensor {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> values;
  TensorView view() const { return {name, shape, values}; }
};

using TensorMetadata = std::map<std::string, std::string>;

// Writes the tensors in the order given, then `others`: the same content gives
// the same bytes. As WriteFileAtomically() (atomic_file.h): on failure the old
// file stays. InvalidArgument names the tensor whose name, type, shape or size
// does not fit.
absl::Status WriteSafetensors(const std::string& path,
                              absl::Span<const TensorView> tensors,
                              const TensorMetadata& metadata,
                              absl::Span<const TypedTensor> others = {});

struct SafetensorsFile {
  std::vector<Tensor> tensors;  // In the order of the file.
  TensorMetadata metadata;
};
// Checks everything before it believes it: sizes against the file, types,
// shapes, and that the tensors fill the data without gap or overlap. DataLoss
// names the file, the tensor, the offset and the bound; Unimplemented a type
// other than F32.
absl::StatusOr<SafetensorsFile> ReadSafetensors(const std::string& path);

// Hash over names, shapes and values in the order given, and nothing else.
std::string TensorsSha256(absl::Span<const TensorView> tensors);

}  // namespace slackline
