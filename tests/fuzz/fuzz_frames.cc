// The sizes in front of a header frame, and frames of any sizes behind it.
#include <numeric>

#include "common/net/payload_frames.h"
#include "common/status.h"
#include "tests/fuzz/input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace slackline;
  constexpr size_t kPayloadsMax = 64;
  fuzz::Input input(data, size);
  const absl::Span<const uint8_t> bytes = input.Chunk();
  const absl::Span<const std::byte> whole(
      reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  absl::Span<const std::byte> header = whole;
  FrameSlicer slicer;
  if (!slicer.ReadSizes(kPayloadsMax, &header).ok()) return 0;
  SL_CHECK(header.size() <= whole.size() &&
               header.data() + header.size() == whole.data() + whole.size(),
           "something else than the front was taken");
  const bool told = header.size() < whole.size();
  size_t payloads = 0;
  while (!input.empty()) {
    const size_t frame = input.Byte() * size_t{input.Byte()};
    const auto sizes = slicer.Slice(frame);
    if (!sizes.ok()) return 0;
    SL_CHECK(!sizes->empty() && std::accumulate(sizes->begin(), sizes->end(),
                                                size_t{0}) == frame,
             "payloads do not fill their frame");
    payloads += sizes->size();
    SL_CHECK(!told || payloads <= kPayloadsMax, "too many payloads");
  }
  slicer.End().IgnoreError();
  return 0;
}
