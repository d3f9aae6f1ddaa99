#include "common/compress/gradient_code.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/floats/half.h"
#include "common/status.h"

namespace slackline {
namespace {

using wire::Encoding;

size_t RoundUp(size_t bytes) { return (bytes + 3) / 4 * 4; }

size_t KeptOf(const GradientCode& code, size_t elements) {
  return std::min(elements, static_cast<size_t>(code.kept));
}

// Of a block of so many elements.
size_t BlockBytes(const GradientCode& code, size_t elements) {
  switch (code.kind) {
    case Encoding::INT8:
      return sizeof(float) + RoundUp(elements);
    case Encoding::SIGN:
      return sizeof(float) + (elements + 31) / 32 * sizeof(uint32_t);
    case Encoding::SPARSE: {
      const size_t kept = KeptOf(code, elements);
      return kept * sizeof(float) + RoundUp(kept * sizeof(uint16_t));
    }
    default:
      return elements * (code.whole() ? sizeof(float) : sizeof(uint16_t));
  }
}

bool HasBlocks(Encoding::Kind kind) {
  return kind == Encoding::INT8 || kind == Encoding::SIGN ||
         kind == Encoding::SPARSE;
}

HalfType HalfOf(Encoding::Kind kind) {
  return kind == Encoding::BFLOAT16 ? HalfType::kBfloat16 : HalfType::kFloat16;
}

// A block never begins in the middle of such a value.
template <typename T>
void Store(T value, std::byte* to) {
  std::memcpy(to, &value, sizeof(value));
}
template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

void EncodeInt8(absl::Span<const float> block, std::byte* to) {
  float largest = 0;
  for (const float x : block) largest = std::max(largest, std::fabs(x));
  float scale = largest / 127;
  // Of the largest floats 127 times the rounded scale may be none any more.
  if (!std::isfinite(scale * 127)) scale = std::nextafter(scale, 0.0f);
  // Of tiny values the scale may be zero, and its inverse infinite.
  const float inverse = scale > 0 && std::isfinite(1 / scale) ? 1 / scale : 0;
  Store(scale, to);
  std::byte* const codes = to + sizeof(float);
  for (size_t i = 0; i < block.size(); ++i) {
    const float scaled =
        std::clamp(std::nearbyint(block[i] * inverse), -127.0f, 127.0f);
    codes[i] = static_cast<std::byte>(static_cast<int8_t>(scaled));
  }
  std::fill(codes + block.size(), codes + RoundUp(block.size()), std::byte{0});
}

void DecodeInt8(const std::byte* from, absl::Span<float> block) {
  const float scale = Load<float>(from);
  const std::byte* const codes = from + sizeof(float);
  for (size_t i = 0; i < block.size(); ++i)
    block[i] = scale * static_cast<float>(static_cast<int8_t>(codes[i]));
}

void EncodeSign(absl::Span<const float> block, std::byte* to) {
  double sum = 0;
  for (const float x : block) sum += std::fabs(x);
  Store(static_cast<float>(sum / static_cast<double>(block.size())), to);
  to += sizeof(float);
  for (size_t i = 0; i < block.size(); i += 32) {
    uint32_t word = 0;
    for (size_t j = i; j < std::min(i + 32, block.size()); ++j)
      word |= static_cast<uint32_t>(std::signbit(block[j])) << (j - i);
    Store(word, to + i / 32 * sizeof(word));
  }
}

void DecodeSign(const std::byte* from, absl::Span<float> block) {
  const float scale = Load<float>(from);
  from += sizeof(float);
  for (size_t i = 0; i < block.size(); ++i) {
    const auto word = Load<uint32_t>(from + i / 32 * sizeof(uint32_t));
    block[i] = (word >> (i % 32) & 1) != 0 ? -scale : scale;
  }
}

// In ascending order.
std::vector<uint16_t> Largest(absl::Span<const float> block, size_t kept) {
  std::vector<uint16_t> places(block.size());
  std::iota(places.begin(), places.end(), uint16_t{0});
  std::nth_element(places.begin(),
                   places.begin() + static_cast<std::ptrdiff_t>(kept),
                   places.end(), [&](uint16_t a, uint16_t b) {
                     const float x = std::fabs(block[a]);
                     const float y = std::fabs(block[b]);
                     return x != y ? x > y : a < b;
                   });
  places.resize(kept);
  std::sort(places.begin(), places.end());
  return places;
}

// Likewise. Each place is taken with the chance that leaves the rest to those
// behind it (Knuth, The Art of Computer Programming, vol. 2, 3.4.2, algorithm
// S).
std::vector<uint16_t> AnyOf(size_t elements, size_t kept, Rng* rng) {
  std::vector<uint16_t> places;
  places.reserve(kept);
  for (size_t i = 0; places.size() < kept; ++i) {
    if (rng->Below(elements - i) < kept - places.size())
      places.push_back(static_cast<uint16_t>(i));
  }
  return places;
}

void EncodeSparse(const GradientCode& code, Keep keep,
                  absl::Span<const float> block, Rng* rng, std::byte* to) {
  const size_t kept = KeptOf(code, block.size());
  const std::vector<uint16_t> places = keep == Keep::kLargest
                                           ? Largest(block, kept)
                                           : AnyOf(block.size(), kept, rng);
  for (size_t i = 0; i < kept; ++i)
    Store(block[places[i]], to + i * sizeof(float));
  to += kept * sizeof(float);
  std::fill(to, to + RoundUp(kept * sizeof(uint16_t)), std::byte{0});
  for (size_t i = 0; i < kept; ++i) Store(places[i], to + i * sizeof(uint16_t));
}

bool DecodeSparse(const GradientCode& code, const std::byte* from,
                  absl::Span<float> block) {
  const size_t kept = KeptOf(code, block.size());
  std::fill(block.begin(), block.end(), 0.0f);
  const std::byte* const places = from + kept * sizeof(float);
  size_t next = 0;
  for (size_t i = 0; i < kept; ++i) {
    const size_t place = Load<uint16_t>(places + i * sizeof(uint16_t));
    if (place < next || place >= block.size()) return false;
    next = place + 1;
    block[place] = Load<float>(from + i * sizeof(float));
  }
  return true;
}

}  // namespace

size_t GradientCode::Bytes(size_t elements) const {
  if (!HasBlocks(kind)) return BlockBytes(*this, elements);
  const auto of_block = static_cast<size_t>(block);
  const size_t rest = elements % of_block;
  return elements / of_block * BlockBytes(*this, of_block) +
         (rest == 0 ? 0 : BlockBytes(*this, rest));
}

std::string FaultOf(const wire::Encoding& encoding) {
  if (!Encoding::Kind_IsValid(encoding.kind()))
    return absl::StrCat("there is no encoding ", encoding.kind());
  if (!HasBlocks(encoding.kind())) return "";
  if (encoding.block() < 1 || encoding.block() > GradientCode::kBlockMax) {
    return absl::StrCat("an encoding has blocks of ", encoding.block(),
                        " elements, outside [1, ", GradientCode::kBlockMax,
                        "]");
  }
  if (encoding.kind() == Encoding::SPARSE &&
      (encoding.kept() < 1 || encoding.kept() > encoding.block())) {
    return absl::StrCat("an encoding keeps ", encoding.kept(), " of ",
                        encoding.block(), " elements");
  }
  return "";
}

GradientCode CodeOf(const wire::Encoding& encoding) {
  return {.kind = encoding.kind(),
          .block = HasBlocks(encoding.kind()) ? encoding.block() : 1,
          .kept = encoding.kept()};
}

wire::Encoding EncodingOf(const GradientCode& code, size_t elements) {
  wire::Encoding encoding;
  encoding.set_kind(code.kind);
  encoding.set_elements(static_cast<int64_t>(elements));
  if (!HasBlocks(code.kind)) return encoding;
  encoding.set_block(code.block);
  if (code.kind == Encoding::SPARSE) encoding.set_kept(code.kept);
  return encoding;
}

void Encode(const GradientCode& code, Keep keep, absl::Span<const float> values,
            Rng* rng, std::byte* to) {
  if (code.whole()) {
    std::memcpy(to, values.data(), values.size() * sizeof(float));
    return;
  }
  if (!HasBlocks(code.kind)) {
    const HalfType type = HalfOf(code.kind);
    for (size_t i = 0; i < values.size(); ++i)
      Store(RoundToHalf(type, values[i]), to + i * sizeof(uint16_t));
    return;
  }
  const auto of_block = static_cast<size_t>(code.block);
  for (size_t i = 0; i < values.size(); i += of_block) {
    const absl::Span<const float> block = values.subspan(i, of_block);
    switch (code.kind) {
      case Encoding::INT8:
        EncodeInt8(block, to);
        break;
      case Encoding::SIGN:
        EncodeSign(block, to);
        break;
      default:
        EncodeSparse(code, keep, block, rng, to);
        break;
    }
    to += BlockBytes(code, block.size());
  }
}

bool Decode(const GradientCode& code, const std::byte* from,
            absl::Span<float> to) {
  if (code.whole()) {
    std::memcpy(to.data(), from, to.size() * sizeof(float));
    return true;
  }
  if (!HasBlocks(code.kind)) {
    ExpandHalf(HalfOf(code.kind), from, to.size(), to.data());
    return true;
  }
  const auto of_block = static_cast<size_t>(code.block);
  for (size_t i = 0; i < to.size(); i += of_block) {
    const absl::Span<float> block = to.subspan(i, of_block);
    switch (code.kind) {
      case Encoding::INT8:
        DecodeInt8(from, block);
        break;
      case Encoding::SIGN:
        DecodeSign(from, block);
        break;
      default:
        if (!DecodeSparse(code, from, block)) return false;
        break;
    }
    from += BlockBytes(code, block.size());
  }
  return true;
}

CodedGradient Slice(const CodedGradient& gradient, size_t elements,
                    size_t begin, size_t count) {
  const GradientCode& code = gradient.code;
  const auto of_block = static_cast<size_t>(code.block);
  const size_t end = begin + count;
  const size_t first = begin / of_block * of_block;
  const size_t last =
      std::min(elements, (end + of_block - 1) / of_block * of_block);
  const Payload bytes =
      gradient.bytes.Slice(code.Bytes(first), code.Bytes(last - first));
  if (first == begin && last == end) return {bytes, code};
  std::vector<float> floats(last - first);
  SL_CHECK(Decode(code, bytes.data(), absl::MakeSpan(floats)),
           "a gradient that was encoded here cannot be decoded");
  return CodedGradient(
      Payload::Copy(floats.data() + (begin - first), count * sizeof(float)));
}

Payload FloatsOf(const CodedGradient& gradient, size_t elements) {
  if (gradient.code.whole()) return gradient.bytes;
  Payload floats = Payload::Allocate(elements * sizeof(float));
  SL_CHECK(Decode(gradient.code, gradient.bytes.data(),
                  {reinterpret_cast<float*>(floats.MutableData()), elements}),
           "a gradient that was encoded here cannot be decoded");
  return floats;
}

Payload RoundParameters(wire::Encoding::Kind pulled_as, const Payload& floats,
                        PayloadMemory& memory) {
  if (pulled_as == Encoding::FLOAT32) return floats;
  const size_t elements = floats.size() / sizeof(float);
  Payload rounded = memory.Allocate(elements * sizeof(uint16_t));
  RoundToFiniteHalf(HalfOf(pulled_as), floats.data(), elements,
                    rounded.MutableData());
  return rounded;
}

Payload ExpandParameters(wire::Encoding::Kind pulled_as,
                         const Payload& rounded) {
  if (pulled_as == Encoding::FLOAT32) return rounded;
  const size_t elements = rounded.size() / sizeof(uint16_t);
  Payload floats = Payload::Allocate(elements * sizeof(float));
  ExpandHalf(HalfOf(pulled_as), rounded.data(), elements,
             reinterpret_cast<float*>(floats.MutableData()));
  return floats;
}

}  // namespace slackline
