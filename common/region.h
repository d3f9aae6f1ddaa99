// Region: which part of a table something is of: the elements [begin, end).
//
// How large a part is, whether two of them have something in common and where
// one can be split is asked here, so that only whoever lays the elements out in
// memory, or writes them down, looks at the two numbers. An immutable value.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace slackline {

class Region {
 public:
  constexpr Region() = default;  // Has nothing.
  constexpr Region(int64_t begin, int64_t end) : begin_(begin), end_(end) {}
  // The first elements of a table.
  static constexpr Region First(int64_t size) { return {0, size}; }

  constexpr int64_t begin() const { return begin_; }
  constexpr int64_t end() const { return end_; }
  constexpr bool empty() const { return begin_ >= end_; }
  constexpr int64_t size() const { return end_ - begin_; }

  // All of `other`, which is not empty, is in this one.
  constexpr bool Contains(const Region& other) const {
    return begin_ <= other.begin_ && other.end_ <= end_ && !other.empty();
  }
  // What is in both; empty if there is nothing.
  constexpr Region Overlap(const Region& other) const {
    return {std::max(begin_, other.begin_), std::min(end_, other.end_)};
  }
  constexpr bool Overlaps(const Region& other) const {
    return !Overlap(other).empty();
  }

  // Whether there is something on both sides of `at`.
  constexpr bool CanBeSplit(int64_t at) const {
    return begin_ < at && at < end_;
  }
  // What is before `at`, which is not before all of it, and from there on.
  constexpr std::pair<Region, Region> SplitAt(int64_t at) const {
    return {{begin_, at}, {at, end_}};
  }
  // The first `size` elements, and the rest.
  constexpr std::pair<Region, Region> SplitAfter(int64_t size) const {
    return SplitAt(begin_ + size);
  }
  // All of it in order, in pieces of `size`, at least 1; the last one may be
  // smaller.
  std::vector<Region> Pieces(int64_t size) const {
    std::vector<Region> pieces;
    for (int64_t at = begin_; at < end_; at = pieces.back().end_)
      pieces.emplace_back(at, size < end_ - at ? at + size : end_);
    return pieces;
  }

  // Bytes of a tensor with a float for each element, and at which of them that
  // of `part`, which is in this one, begins there.
  constexpr size_t DenseBytes() const {
    return static_cast<size_t>(size()) * sizeof(float);
  }
  constexpr size_t DenseOffset(const Region& part) const {
    return static_cast<size_t>(part.begin_ - begin_) * sizeof(float);
  }

  // "[65536, 131072)", as shards are named after their table.
  std::string Text() const {
    return absl::StrCat("[", begin_, ", ", end_, ")");
  }

  // By where they begin.
  constexpr auto operator<=>(const Region&) const = default;

 private:
  int64_t begin_ = 0;
  int64_t end_ = 0;
};

}  // namespace slackline
