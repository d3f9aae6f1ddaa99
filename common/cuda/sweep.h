// Which thread of a kernel takes which elements of arrays of one length: four
// at a time where all arrays are aligned for that. Runs on a CPU, too, where
// tests look at it without a GPU.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "common/host_device.h"

namespace slackline {

// A head of single elements, then vectors of four, then the rest.
struct Sweep {
  size_t head = 0;
  size_t vectors = 0;
  size_t elements = 0;

  SL_HOST_DEVICE size_t Singles() const { return elements - 4 * vectors; }
  size_t Threads() const { return std::max(vectors, Singles()); }

  // The part of the thread `thread` of `threads`. `body` has One(i) for the
  // element i, and Four(i) for the aligned elements [i, i + 4).
  template <typename Body>
  SL_HOST_DEVICE void Run(const Body& body, size_t thread,
                          size_t threads) const {
    for (size_t v = thread; v < vectors; v += threads) body.Four(head + 4 * v);
    for (size_t s = thread; s < Singles(); s += threads) {
      body.One(s < head ? s : s + 4 * vectors);
    }
  }
};

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

  // No vectors if the arrays disagree.
  Sweep Over(size_t elements) const {
    Sweep sweep;
    sweep.head = same_ ? std::min(head_, elements) : elements;
    sweep.vectors = (elements - sweep.head) / 4;
    sweep.elements = elements;
    return sweep;
  }

 private:
  int arrays_ = 0;
  bool same_ = true;
  size_t head_ = 0;
};

}  // namespace slackline
