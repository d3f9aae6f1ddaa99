#include "common/timeline/recorder.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/utf8.h"
#include "google/protobuf/io/coded_stream.h"

namespace slackline {
namespace {

using google::protobuf::io::CodedOutputStream;

// Of a thread in a part, beside its events and its name.
constexpr size_t kThreadBytes = 128;

uint64_t ZigZag(int64_t value) {
  return (static_cast<uint64_t>(value) << 1) ^
         static_cast<uint64_t>(value >> 63);
}

size_t VarintBytes(uint64_t value) {
  return CodedOutputStream::VarintSize64(value);
}

// The beginning of it, with whole characters: names in messages are UTF-8.
std::string Shortened(absl::string_view text, size_t bytes_max) {
  std::string whole = IsUtf8(text) ? std::string(text) : absl::CHexEscape(text);
  if (whole.size() <= bytes_max) return whole;
  size_t end = bytes_max;
  while (end > 0 && (static_cast<uint8_t>(whole[end]) & 0xC0) == 0x80) --end;
  whole.resize(end);
  return whole;
}

}  // namespace

// ---- A track ----------------------------------------------------------------

void TimelineTrack::Put(const char* name, const TimelineEvent& event) {
  const int64_t begun = absl::ToUnixNanos(event.begun);
  const Entry entry = {.name = name,
                       .begun_nanos = begun,
                       .took_nanos = absl::ToUnixNanos(event.until) - begun,
                       .flow = event.flow,
                       .number = event.number};
  if (entries_.size() < events_max_) {
    entries_.push_back(entry);
    return;
  }
  entries_[next_] = entry;
  next_ = (next_ + 1) % events_max_;
  ++lost_;
}

void TimelineTrack::Add(const TimelineEvent& event) {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (recording_) Put(event.name, event);
}

void TimelineTrack::AddSentence(absl::string_view sentence, absl::Time at) {
  if (!on()) return;
  const MutexLock lock(mutex_);
  if (!recording_) return;
  std::string name = Shortened(sentence, kSentenceBytesMax);
  auto kept = sentences_.find(name);
  if (kept == sentences_.end()) {
    if (sentences_.size() == kSentencesMax) {
      ++lost_;
      return;
    }
    kept = sentences_.insert(std::move(name)).first;
  }
  Put(kept->c_str(), {.begun = at, .until = at});
}

void TimelineTrack::Begin() {
  const MutexLock lock(mutex_);
  entries_.clear();
  entries_.reserve(events_max_);
  next_ = 0;
  lost_ = 0;
  sentences_.clear();
  recording_ = true;
  on_.store(true, std::memory_order_relaxed);
}

TimelineTrack::Taken TimelineTrack::End() {
  Taken taken;
  size_t oldest = 0;
  {
    const MutexLock lock(mutex_);
    on_.store(false, std::memory_order_relaxed);
    recording_ = false;
    taken.entries = std::exchange(entries_, {});
    taken.lost = std::exchange(lost_, 0);
    taken.sentences.swap(sentences_);
    oldest = std::exchange(next_, 0);
  }
  std::rotate(taken.entries.begin(),
              taken.entries.begin() + static_cast<ptrdiff_t>(oldest),
              taken.entries.end());
  return taken;
}

// ---- The recorder -----------------------------------------------------------

TimelineTrack* TimelineRecorder::TrackOf(const std::string& name) {
  const MutexLock lock(mutex_);
  for (TimelineTrack& track : tracks_)
    if (track.name_ == name) return &track;
  TimelineTrack& track = tracks_.emplace_back(name, options_.events_per_track);
  if (recording_) track.Begin();
  return &track;
}

void TimelineRecorder::Begin(absl::Time now, absl::Time wall_now) {
  const MutexLock lock(mutex_);
  recording_ = true;
  begun_ = now;
  wall_begun_ = wall_now;
  for (TimelineTrack& track : tracks_) track.Begin();
}

timeline::Part TimelineRecorder::End(absl::Time now, size_t bytes_max) {
  timeline::Part part;
  const MutexLock lock(mutex_);
  const int64_t until = absl::ToUnixNanos(now);
  const int64_t from = recording_ ? absl::ToUnixNanos(begun_) : until;
  part.set_from_nanos(from);
  part.set_until_nanos(until);
  if (!std::exchange(recording_, false)) return part;
  part.set_from_wall_nanos(absl::ToUnixNanos(wall_begun_));

  std::vector<TimelineTrack::Taken> taken;
  // By text; and by where it is, which is faster.
  std::map<absl::string_view, int32_t> names;
  absl::flat_hash_map<const char*, int32_t> name_at;
  // What a part takes, and what of it each event does, by its end.
  size_t bytes = kThreadBytes;
  struct Cost {
    int64_t end_nanos;
    size_t bytes;
  };
  std::vector<Cost> costs;
  for (TimelineTrack& track : tracks_) {
    TimelineTrack::Taken& of = taken.emplace_back(track.End());
    bytes += kThreadBytes + track.name_.size();
    std::erase_if(of.entries, [&](const TimelineTrack::Entry& entry) {
      return entry.begun_nanos + entry.took_nanos < from ||
             entry.begun_nanos > until || entry.took_nanos < 0;
    });
    int64_t before = from;
    std::stable_sort(
        of.entries.begin(), of.entries.end(),
        [](const TimelineTrack::Entry& a, const TimelineTrack::Entry& b) {
          return a.begun_nanos < b.begun_nanos;
        });
    for (TimelineTrack::Entry& entry : of.entries) {
      const int64_t end = std::min(entry.begun_nanos + entry.took_nanos, until);
      entry.begun_nanos = std::max(entry.begun_nanos, from);
      entry.took_nanos = end - entry.begun_nanos;
      if (const auto [at, is_new] = name_at.try_emplace(entry.name, 0);
          is_new) {
        const auto index = static_cast<int32_t>(names.size());
        const auto name = names.emplace(entry.name, index).first;
        at->second = name->second;
        bytes += name->first.size() + 8;
      }
      costs.push_back(
          {.end_nanos = end,
           .bytes = VarintBytes(static_cast<uint64_t>(names.size())) +
                    VarintBytes(ZigZag(entry.begun_nanos - before)) +
                    VarintBytes(static_cast<uint64_t>(entry.took_nanos)) +
                    sizeof(entry.flow) +
                    VarintBytes(static_cast<uint64_t>(entry.number))});
      before = entry.begun_nanos;
    }
  }
  // The newest ones that fit are kept: those that end after `dropped_until`.
  int64_t dropped_until = from - 1;
  size_t all = bytes;
  for (const Cost& cost : costs) all += cost.bytes;
  if (all > bytes_max) {
    std::sort(costs.begin(), costs.end(), [](const Cost& a, const Cost& b) {
      return a.end_nanos > b.end_nanos;
    });
    for (const Cost& cost : costs) {
      bytes += cost.bytes;
      if (bytes <= bytes_max) continue;
      dropped_until = cost.end_nanos;
      break;
    }
  }
  for (size_t i = 0; i < names.size(); ++i) part.add_name();
  for (const auto& [name, index] : names)
    part.mutable_name(index)->assign(name.data(), name.size());
  auto track = tracks_.begin();
  for (TimelineTrack::Taken& of : taken) {
    timeline::Thread& thread = *part.add_thread();
    thread.set_name((track++)->name_);
    int64_t lost = of.lost;
    int64_t before = from;
    for (const TimelineTrack::Entry& entry : of.entries) {
      if (entry.begun_nanos + entry.took_nanos <= dropped_until) {
        ++lost;
        continue;
      }
      thread.add_name_index(name_at.at(entry.name));
      thread.add_begun_nanos(entry.begun_nanos - before);
      thread.add_took_nanos(entry.took_nanos);
      thread.add_flow(entry.flow);
      thread.add_number(entry.number);
      before = entry.begun_nanos;
    }
    thread.set_lost(lost);
    of = {};
  }
  return part;
}

}  // namespace slackline
