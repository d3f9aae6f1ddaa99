// Followers: which server threads have copies of which shard: an immutable
// list, by shard id. A list that is made from another one shares with it all
// that is the same, as Owners do (owners.h).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "google/protobuf/repeated_field.h"
#include "proto/view.pb.h"

namespace slackline {

inline bool IsSame(const wire::Follower& a, const wire::Follower& b) {
  return a.shard() == b.shard() && a.server() == b.server() &&
         a.thread() == b.thread() && a.since() == b.since() &&
         a.in_sync() == b.in_sync();
}

class Followers {
 public:
  int32_t size() const { return size_; }
  // The followers of the shard, which is in [0, size()), by server.
  absl::Span<const wire::Follower> operator[](int32_t shard) const {
    const std::shared_ptr<Part>& part = parts_[PartOf(shard)];
    if (part == nullptr) return {};
    return (*part)[PlaceOf(shard)];
  }

  // Shards of both lists that have different followers, in order. Costs a look
  // at each part, and at the shards of parts that the lists do not share.
  std::vector<int32_t> Differences(const Followers& other) const {
    std::vector<int32_t> different;
    const int32_t shards = std::min(size_, other.size_);
    for (int32_t begin = 0; begin < shards; begin += kPart) {
      if (parts_[PartOf(begin)] == other.parts_[PartOf(begin)]) continue;
      for (int32_t i = begin; i < std::min(begin + kPart, shards); ++i) {
        const absl::Span<const wire::Follower> ours = (*this)[i];
        const absl::Span<const wire::Follower> theirs = other[i];
        if (!std::equal(ours.begin(), ours.end(), theirs.begin(), theirs.end(),
                        IsSame)) {
          different.push_back(i);
        }
      }
    }
    return different;
  }

  void AddTo(google::protobuf::RepeatedPtrField<wire::Follower>* list) const {
    for (const std::shared_ptr<Part>& part : parts_) {
      if (part == nullptr) continue;
      for (const Copies& copies : *part)
        list->Add(copies.begin(), copies.end());
    }
  }

  // ---- To be called while this list is made, before anybody else sees it.
  // Adds shards at the end, without followers.
  void AddShards(int32_t count) {
    size_ += count;
    parts_.resize(static_cast<size_t>((size_ + kPart - 1) / kPart));
  }
  // Adds a shard at the end, with the followers of this one.
  void AddShardLike(int32_t shard) {
    AddShards(1);
    for (wire::Follower follower :
         Copies((*this)[shard].begin(), (*this)[shard].end())) {
      follower.set_shard(size_ - 1);
      Put(std::move(follower));
    }
  }
  // Adds a follower of its shard, or puts it in the place of the one on its
  // server.
  void Put(wire::Follower follower) {
    Copies& copies = Write(follower.shard());
    const auto place = PlaceIn(copies, follower.server());
    if (place != copies.end() && place->server() == follower.server()) {
      *place = std::move(follower);
    } else {
      copies.insert(place, std::move(follower));
    }
  }
  // Removes the follower, if it is there.
  void Remove(int32_t shard, int32_t server) {
    if ((*this)[shard].empty()) return;
    Copies& copies = Write(shard);
    const auto place = PlaceIn(copies, server);
    if (place != copies.end() && place->server() == server) copies.erase(place);
  }

 private:
  // The followers of one shard, by server.
  using Copies = std::vector<wire::Follower>;
  static constexpr int32_t kPart = 256;
  using Part = std::array<Copies, kPart>;

  static size_t PartOf(int32_t shard) {
    return static_cast<size_t>(shard / kPart);
  }
  static size_t PlaceOf(int32_t shard) {
    return static_cast<size_t>(shard % kPart);
  }
  static Copies::iterator PlaceIn(Copies& copies, int32_t server) {
    return std::find_if(
        copies.begin(), copies.end(),
        [&](const wire::Follower& other) { return other.server() >= server; });
  }
  Copies& Write(int32_t shard) {
    std::shared_ptr<Part>& part = parts_[PartOf(shard)];
    if (part == nullptr) {
      part = std::make_shared<Part>();
    } else if (part.use_count() > 1) {
      // Lists that exist refer to the part, and never write to it.
      part = std::make_shared<Part>(*part);
    }
    return (*part)[PlaceOf(shard)];
  }

  // nullptr: none of the part's shards has followers.
  std::vector<std::shared_ptr<Part>> parts_;
  int32_t size_ = 0;
};

}  // namespace slackline
