#include "common/net/payload_frames.h"

#include <cstring>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// No wire::Header begins with it: it would be a field with the number 0.
constexpr std::byte kSizesMark{0};

size_t ReadSize(absl::Span<const std::byte> bytes, size_t index) {
  uint64_t size;
  std::memcpy(&size, bytes.data() + index * sizeof(size), sizeof(size));
  return size;
}

// The payloads from the first on that lie side by side, and empty ones.
PayloadRun AdjacentRun(absl::Span<const Payload> payloads) {
  PayloadRun run = {.payloads = 1, .bytes = payloads.front().size()};
  while (run.payloads < payloads.size()) {
    const Payload& next = payloads[run.payloads];
    if (!next.empty() && next.data() != payloads.front().data() + run.bytes)
      break;
    run.bytes += next.size();
    ++run.payloads;
  }
  return run;
}

}  // namespace

PayloadRun FirstRun(absl::Span<const Payload> payloads) {
  PayloadRun run = AdjacentRun(payloads);
  while (run.payloads < payloads.size()) {
    const PayloadRun next = AdjacentRun(payloads.subspan(run.payloads));
    if (run.bytes + next.bytes > kCopiedFrameBytesMax) break;
    run.payloads += next.payloads;
    run.bytes += next.bytes;
    run.adjacent = false;
  }
  return run;
}

size_t PayloadSizesBytes(size_t payloads) {
  return 1 + (1 + payloads) * sizeof(uint64_t);
}

void WritePayloadSizes(absl::Span<const Payload> payloads, std::byte* out) {
  *out++ = kSizesMark;
  const auto write = [&](uint64_t number) {
    std::memcpy(out, &number, sizeof(number));
    out += sizeof(number);
  };
  write(payloads.size());
  for (const Payload& payload : payloads) write(payload.size());
}

absl::Status FrameSlicer::ReadSizes(size_t payloads_max,
                                    absl::Span<const std::byte>* header) {
  if (header->empty() || header->front() != kSizesMark) return absl::OkStatus();
  told_ = true;
  header->remove_prefix(1);
  const size_t room = header->size() / sizeof(uint64_t);
  const size_t count = room > 0 ? ReadSize(*header, 0) : 0;
  if (count < 1 || count >= room) {
    return absl::InvalidArgumentError(absl::StrCat(
        "header frame with the sizes of ", count,
        " payloads, it has room for 1 to ", room > 0 ? room - 1 : 0));
  }
  if (count > payloads_max) {
    return absl::InvalidArgumentError(absl::StrCat(
        count, " payloads, at most ", payloads_max, " are allowed"));
  }
  sizes_.resize(count);
  for (size_t i = 0; i < count; ++i) sizes_[i] = ReadSize(*header, 1 + i);
  header->remove_prefix((1 + count) * sizeof(uint64_t));
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const size_t>> FrameSlicer::Slice(size_t bytes) {
  if (!told_) {
    whole_ = bytes;
    return absl::MakeConstSpan(&whole_, 1);
  }
  const size_t first = next_;
  size_t left = bytes;
  do {
    if (next_ == sizes_.size() || sizes_[next_] > left) {
      return absl::InvalidArgumentError(absl::StrCat(
          "payload frame of ", bytes, " bytes, of which ", bytes - left,
          " are those of payloads as the header frame says them"));
    }
    left -= sizes_[next_++];
  } while (left > 0 || (next_ < sizes_.size() && sizes_[next_] == 0));
  return absl::MakeConstSpan(sizes_).subspan(first, next_ - first);
}

absl::Status FrameSlicer::End() const {
  if (!told_ || next_ == sizes_.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("message with ", next_, " of the ", sizes_.size(),
                   " payloads that its header frame says it has"));
}

}  // namespace slackline
