// Owners: which server thread owns which shard: an immutable list, by shard id.
// A list that is made from another one shares with it all that is the same, so
// that a view of 100,000 shards in which one of them moves costs no copy of
// all.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/ids.h"

namespace slackline {

class Owners {
 public:
  int32_t size() const { return size_; }
  // `shard` is in [0, size()).
  Owner operator[](int32_t shard) const {
    return (*parts_[static_cast<size_t>(shard / kPart)])[PlaceOf(shard)];
  }

  // Shards of both lists that have different owners, in order. Costs a look at
  // each part, and at the shards of parts that the lists do not share.
  std::vector<int32_t> Differences(const Owners& other) const {
    std::vector<int32_t> different;
    const int32_t shards = std::min(size_, other.size_);
    for (int32_t begin = 0; begin < shards; begin += kPart) {
      const auto part = static_cast<size_t>(begin / kPart);
      if (parts_[part] == other.parts_[part]) continue;
      for (int32_t i = begin; i < std::min(begin + kPart, shards); ++i) {
        if ((*this)[i] != other[i]) different.push_back(i);
      }
    }
    return different;
  }

  // ---- To be called while this list is made, before anybody else sees it.
  void Add(Owner owner) {
    if (size_ % kPart == 0) parts_.push_back(std::make_shared<Part>());
    ++size_;
    Set(size_ - 1, owner);
  }
  void Set(int32_t shard, Owner owner) {
    std::shared_ptr<Part>& part = parts_[static_cast<size_t>(shard / kPart)];
    // Lists that exist refer to the part, and never write to it.
    if (part.use_count() > 1) part = std::make_shared<Part>(*part);
    (*part)[PlaceOf(shard)] = owner;
  }

 private:
  static constexpr int32_t kPart = 512;
  using Part = std::array<Owner, kPart>;

  static size_t PlaceOf(int32_t shard) {
    return static_cast<size_t>(shard % kPart);
  }

  std::vector<std::shared_ptr<Part>> parts_;
  int32_t size_ = 0;
};

}  // namespace slackline
