// DelayLine: what passes one direction of a link that has a latency and a
// bandwidth. What is pushed comes out in its order, each item when those before
// it have been sent, it has been sent itself, and the latency has passed.
//
// No I/O, threads or clocks. Thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "common/net/delayed/link_model.h"

namespace slackline {

// The direction itself: several DelayLines may share one, and its bandwidth.
class LinkDirection {
 public:
  explicit LinkDirection(const LinkModel& link) : link_(link) {}

  // When bytes that are given to it now come out.
  absl::Time Pass(absl::Time now, size_t bytes) {
    free_at_ = std::max(now, free_at_) + link_.Occupied(bytes);
    return free_at_ + link_.latency;
  }
  // How long what is given to it now waits before it begins to be sent.
  absl::Duration Backlog(absl::Time now) const {
    return std::max(free_at_ - now, absl::ZeroDuration());
  }

 private:
  const LinkModel link_;
  absl::Time free_at_ = absl::InfinitePast();  // All before is sent by then.
};

template <typename Item>
class DelayLine {
 public:
  explicit DelayLine(const LinkModel& link)
      : DelayLine(std::make_shared<LinkDirection>(link)) {}
  explicit DelayLine(std::shared_ptr<LinkDirection> direction)
      : direction_(std::move(direction)) {}

  void Push(absl::Time now, size_t bytes, Item item) {
    items_.push_back({direction_->Pass(now, bytes), std::move(item)});
  }

  // LinkDirection::Backlog() of its direction.
  absl::Duration Backlog(absl::Time now) const {
    return direction_->Backlog(now);
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
  const std::shared_ptr<LinkDirection> direction_;
  std::deque<std::pair<absl::Time, Item>> items_;
};

}  // namespace slackline
