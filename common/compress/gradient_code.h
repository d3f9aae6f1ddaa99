// How the floats of a gradient are in a payload: as they are, or in fewer
// bytes. Codes that share a scale or leave elements out do it in blocks of so
// many elements, which lie one after the other; the last one may be shorter.
//
//   float32            4 bytes each
//   bfloat16, float16  2 bytes each, the nearest value
//   int8    of a block its scale s = max |x| / 127 (float32), then x / s
//   rounded,
//           one byte each; zero bytes up to a multiple of 4
//   sign    s = mean |x| (float32), then one bit each, set where x is negative,
//           in words of 32: every element becomes s or -s
//   sparse  `kept` elements of a block: their values (float32), then their
//           places in it (uint16); zero bytes up to a multiple of 4. All others
//           become 0
//
// All little-endian, at any alignment.
//
// Pure functions. 1-bit: Seide et al., "1-bit stochastic gradient descent",
// 2014, with one scale for both signs as in Karimireddy et al., "Error feedback
// fixes SignSGD", 2019. Sparse: Stich et al., "Sparsified SGD with memory",
// 2018.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/types/span.h"
#include "common/payload.h"
#include "common/rng.h"
#include "proto/data.pb.h"

namespace slackline {

struct GradientCode {
  wire::Encoding::Kind kind = wire::Encoding::FLOAT32;
  int32_t block = 1;  // Of the codes with blocks: [1, kBlockMax].
  int32_t kept = 0;   // Of SPARSE: [1, block].

  // Places in a block have 16 bits.
  static constexpr int32_t kBlockMax = 1 << 16;

  bool whole() const { return kind == wire::Encoding::FLOAT32; }
  // Of so many elements that begin a block.
  size_t Bytes(size_t elements) const;
};

// What is wrong with it; empty: nothing.
std::string FaultOf(const wire::Encoding& encoding);
// Of one without a fault.
GradientCode CodeOf(const wire::Encoding& encoding);
// With the number of elements.
wire::Encoding EncodingOf(const GradientCode& code, size_t elements);

// Which elements of a block SPARSE keeps.
enum class Keep { kLargest, kRandom };

// `values` are finite. `to` has code.Bytes(values.size()) bytes. Of equally
// large ones the first are kept; random ones are of `rng`, and each set of them
// is equally likely.
void Encode(const GradientCode& code, Keep keep, absl::Span<const float> values,
            Rng* rng, std::byte* to);

// False if it is not in this code: a place is outside its block, or comes
// twice. `from` has code.Bytes(to.size()) bytes.
bool Decode(const GradientCode& code, const std::byte* from,
            absl::Span<float> to);

// A gradient, or a part of one.
struct CodedGradient {
  CodedGradient() = default;
  CodedGradient(Payload floats)  // NOLINT: a gradient as it is.
      : bytes(std::move(floats)) {}
  CodedGradient(Payload bytes, const GradientCode& code)
      : bytes(std::move(bytes)), code(code) {}

  Payload bytes;
  GradientCode code;
};

// Elements [begin, begin + count) of `elements`. In the same code, and sharing
// the bytes, if they begin and end where blocks do; else as floats.
CodedGradient Slice(const CodedGradient& gradient, size_t elements,
                    size_t begin, size_t count);

// As the receiver has it.
Payload FloatsOf(const CodedGradient& gradient, size_t elements);

// Parameters for steps of a table with this Table::pulled_as: rounded to 16
// bits each; FLOAT32: the floats themselves. What is finite and beyond the
// largest value of the type becomes that value.
Payload RoundParameters(wire::Encoding::Kind pulled_as, const Payload& floats,
                        PayloadMemory& memory);
// What a worker makes of them.
Payload ExpandParameters(wire::Encoding::Kind pulled_as,
                         const Payload& rounded);

}  // namespace slackline
