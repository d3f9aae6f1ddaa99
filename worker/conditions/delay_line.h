// DelayLine: one direction of a link that has a latency and a bandwidth. What
// is pushed comes out in its order, each item when those before it have been
// sent, it has been sent itself, and the latency has passed.
//
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "worker/conditions/link_model.h"

namespace slackline {

template <typename Item>
class DelayLine {
 public:
  explicit DelayLine(const LinkModel& link) : link_(link) {}

  void Push(absl::Time now, size_t bytes, Item item) {
    free_at_ = std::max(now, free_at_) + link_.Occupied(bytes);
    items_.push_back({free_at_ + link_.latency, std::move(item)});
  }

  // When the first item comes out; InfiniteFuture if there is none.
  absl::Time NextWakeup() const {
    return items_.empty() ? absl::InfiniteFuture() : items_.front().first;
  }

  // The first item, if its time has come.
  std::optional<Item> PopDue(absl::Time now) {
    if (now < NextWakeup()) return std::nullopt;
    Item item = std::move(items_.front().second);
    items_.pop_front();
    return item;
  }

 private:
  const LinkModel link_;
  absl::Time free_at_ = absl::InfinitePast();  // All before is sent by then.
  std::deque<std::pair<absl::Time, Item>> items_;
};

}  // namespace slackline
