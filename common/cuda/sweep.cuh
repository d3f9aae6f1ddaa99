// A kernel over arrays of the same length, four elements at a time where all of
// them are aligned for that.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace slackline {

// Where in arrays of one length vectors of four elements may begin.
class Alignment {
 public:
  // `array` is aligned to one element.
  void Add(const void* array, size_t element_bytes) {
    const size_t bytes = 4 * element_bytes;
    const size_t past = reinterpret_cast<uintptr_t>(array) % bytes;
    const size_t head = past == 0 ? 0 : (bytes - past) / element_bytes;
    same_ = same_ && (arrays_ == 0 || head == head_);
    head_ = head;
    ++arrays_;
  }
  // Elements before the first vector; all of them if the arrays disagree.
  size_t HeadOf(size_t elements) const {
    return same_ ? std::min(head_, elements) : elements;
  }

 private:
  int arrays_ = 0;
  bool same_ = true;
  size_t head_ = 0;
};

// `Body` has, for the device: One(i) for the element i, and Four(i) for the
// aligned elements [i, i + 4).
template <typename Body>
__global__ void SweepKernel(const Body body, size_t head, size_t vectors,
                            size_t elements) {
  const size_t thread = size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const size_t threads = size_t{gridDim.x} * blockDim.x;
  for (size_t v = thread; v < vectors; v += threads) body.Four(head + 4 * v);
  const size_t singles = elements - 4 * vectors;
  for (size_t s = thread; s < singles; s += threads) {
    body.One(s < head ? s : s + 4 * vectors);
  }
}

// Returns before the device is done. No elements: does nothing.
template <typename Body>
cudaError_t SweepAsync(Body body, const Alignment& alignment, size_t elements,
                       cudaStream_t stream) {
  constexpr size_t kThreads = 256;
  // Beyond this many blocks each thread takes several elements: more than
  // enough to fill any GPU several times over.
  constexpr size_t kBlocksMax = 1 << 15;
  if (elements == 0) return cudaSuccess;
  size_t head = alignment.HeadOf(elements);
  size_t vectors = (elements - head) / 4;
  const size_t work = std::max(vectors, elements - 4 * vectors);
  const size_t blocks = std::min((work + kThreads - 1) / kThreads, kBlocksMax);
  void* arguments[] = {&body, &head, &vectors, &elements};
  // Its result is this launch's own; cudaGetLastError() may have an older one.
  return cudaLaunchKernel(
      SweepKernel<Body>, dim3(static_cast<unsigned int>(blocks)),
      dim3(static_cast<unsigned int>(kThreads)), arguments, 0, stream);
}

}  // namespace slackline
