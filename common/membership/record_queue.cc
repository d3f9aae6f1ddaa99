#include "common/membership/record_queue.h"

#include <algorithm>

namespace slackline {
namespace {

constexpr size_t kRecordsPerHeartbeat = 256;

}  // namespace

void RecordQueue::Add(const run::MetricRecord& record, absl::Time made_at) {
  if (records_.size() >= records_max_) {
    const auto unsent = records_.begin() + static_cast<ptrdiff_t>(sent_);
    const auto oldest = std::find_if(unsent, records_.end(), [](const auto& r) {
      return r.record.kind() == run::MetricRecord::TRAIN;
    });
    records_.erase(oldest == records_.end() ? unsent : oldest);
    ++dropped_;
  }
  records_.push_back({.record = record, .made_at = made_at});
}

void RecordQueue::PutInto(wire::Heartbeat* heartbeat, absl::Time now) {
  heartbeat->set_first_record(first_);
  const size_t count = std::min(records_.size(), kRecordsPerHeartbeat);
  for (size_t i = 0; i < count; ++i) {
    run::MetricRecord& record = *heartbeat->add_record();
    record = records_[i].record;
    record.set_seconds(absl::ToDoubleSeconds(now - records_[i].made_at));
  }
  sent_ = std::max(sent_, count);
}

void RecordQueue::OnKept(uint64_t number) {
  while (first_ < number && !records_.empty()) {
    records_.pop_front();
    if (sent_ > 0) --sent_;
    ++first_;
  }
}

}  // namespace slackline
