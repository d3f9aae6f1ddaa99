// Safetensors files (https://github.com/huggingface/safetensors, "Format"),
// which PyTorch and others load: an 8-byte little-endian header size, a JSON
// header with name, type, shape and place of each tensor, then the tensors'
// bytes. What is read as a model has to be float32; what is written may have
// other types beside it, and a SafetensorsReader reads other floats, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/io/descriptor.h"
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

// ---- Files that are written and read in pieces ------------------------------

// What a header says of a tensor that is written.
struct TensorHeading {
  std::string name;            // Unique in its file, not "__metadata__".
  std::string type;            // As in TypedTensor.
  std::vector<int64_t> shape;  // Each at least 0; empty for one number.
  size_t bytes = 0;            // What type and shape make.
};
// All bytes of a file before its first tensor, if the tensors follow in this
// order without a gap. `path` is for errors: InvalidArgument names the tensor
// whose name, type, shape or size does not fit.
absl::StatusOr<std::string> MakeSafetensorsHeader(
    const std::string& path, absl::Span<const TensorHeading> tensors,
    const TensorMetadata& metadata);

// A file begins with the size of its JSON header, in so many bytes.
inline constexpr size_t kSafetensorsSizeBytes = sizeof(uint64_t);

// A tensor as a header describes it.
struct TensorPlace {
  std::string name;
  std::string type;  // As in TypedTensor, or one that the format has not had.
  std::vector<int64_t> shape;
  // Of the bytes after the header. As many as type and shape say, if the type
  // is known.
  uint64_t begin = 0;
  uint64_t end = 0;
};
struct SafetensorsHeader {
  std::vector<TensorPlace> tensors;  // In the order of the file.
  TensorMetadata metadata;
};
// What is wrong with a header of so many bytes in a file of so many: DataLoss
// names the file and the bound. To be asked before memory is made for it.
absl::Status CheckSafetensorsHeaderSize(const std::string& path,
                                        uint64_t header_bytes,
                                        uint64_t file_bytes);
// The JSON header of a file with `data_bytes` after it, whatever the types;
// errors as those of ReadSafetensors().
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    const std::string& path, absl::string_view json, uint64_t data_bytes);

// A file that is read tensor by tensor.
class SafetensorsReader {
 public:
  // Reads the header, whatever the types. Errors as those of ReadSafetensors();
  // FailedPrecondition: there is something that is no regular file.
  static absl::StatusOr<std::unique_ptr<SafetensorsReader>> Open(
      const std::string& path);

  const SafetensorsHeader& header() const { return header_; }
  // Whether ReadFloats() has a tensor of this type: F32, F16, BF16 and F64.
  static bool IsFloat(absl::string_view type);
  // The tensor, which is one of the header's, as float32. F16 and BF16 are
  // exact, F64 is rounded to the nearest. Unimplemented: it is of another type;
  // OutOfRange: a value of F64 is finite and beyond the largest float.
  absl::StatusOr<Tensor> ReadFloats(const TensorPlace& place) const;

 private:
  SafetensorsReader(std::string path, Descriptor file)
      : path_(std::move(path)), file_(std::move(file)) {}
  absl::Status ReadHeader();
  absl::Status ReadAt(uint64_t offset, size_t bytes, void* to,
                      absl::string_view what) const;

  const std::string path_;
  const Descriptor file_;
  uint64_t data_begin_ = 0;  // In the file.
  SafetensorsHeader header_;
};

// Hash over names, shapes and values in the order given, and nothing else.
std::string TensorsSha256(absl::Span<const TensorView> tensors);

}  // namespace slackline
