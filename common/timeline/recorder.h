// What the threads of this process do in a time that somebody asks about: the
// recorder has a track for each thread, and each track a ring of fixed size
// while a recording is under way, and no memory else.
//
// Without a recording an event costs its thread one relaxed load. In a
// recording it costs an uncontended lock. The clock is the one that drivers
// read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/mutex.h"
#include "proto/timeline.pb.h"

namespace slackline {

struct TimelineEvent {
  const char* name = "";  // Lives as long as the process.
  absl::Time begun;
  absl::Time until;   // `begun`: a moment.
  uint64_t flow = 0;  // As timeline::Thread.flow.
  int64_t number = 0;
};

// Of one thread, or of threads that take turns. Events may overlap only as
// calls of functions do. Thread-safe.
class TimelineTrack {
 public:
  TimelineTrack(std::string name, size_t events_max)
      : name_(std::move(name)), events_max_(events_max) {}

  // Whether anybody wants events now. Who has to read a clock for one asks
  // first.
  bool on() const { return on_.load(std::memory_order_relaxed); }
  // Without effect if nobody does.
  void Add(const TimelineEvent& event);
  // A moment with a sentence for a name. Of a recording only so many different
  // ones are kept, and of each so many bytes.
  void AddSentence(absl::string_view sentence, absl::Time at);

  static constexpr size_t kSentencesMax = 1024;
  static constexpr size_t kSentenceBytesMax = 240;

 private:
  friend class TimelineRecorder;
  struct Entry {
    const char* name;
    int64_t begun_nanos;
    int64_t took_nanos;
    uint64_t flow;
    int64_t number;
  };
  static_assert(sizeof(Entry) <= 40);
  // What a recording has of the track, oldest first; names point into
  // `sentences`.
  struct Taken {
    int64_t lost = 0;
    std::vector<Entry> entries;
    std::set<std::string> sentences;
  };
  void Begin();
  Taken End();
  void Put(const char* name, const TimelineEvent& event)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string name_;
  const size_t events_max_;
  std::atomic<bool> on_{false};
  Mutex mutex_;
  bool recording_ ABSL_GUARDED_BY(mutex_) = false;
  // A ring once it is full: the oldest entry is then at next_.
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);
  size_t next_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<std::string> sentences_ ABSL_GUARDED_BY(mutex_);
};

// Tracks may be null where nobody records.
inline bool IsOn(const TimelineTrack* track) {
  return track != nullptr && track->on();
}

// Thread-safe.
class TimelineRecorder {
 public:
  struct Options {
    size_t events_per_track = 128 << 10;  // 40 bytes each.
  };
  TimelineRecorder() : TimelineRecorder(Options()) {}
  explicit TimelineRecorder(const Options& options) : options_(options) {}

  // The track of this name, which is made if there is none. It lives as long as
  // the recorder.
  TimelineTrack* TrackOf(const std::string& name);

  // A recording begins, also if one is under way, of which nothing is left.
  void Begin(absl::Time now, absl::Time wall_now);
  // It ends: what happened since Begin(), and what was under way then. Of all
  // tracks together the oldest events go where it had more than `bytes_max`
  // bytes, serialized. Without a recording: nothing happened.
  timeline::Part End(absl::Time now, size_t bytes_max);

 private:
  const Options options_;
  Mutex mutex_;
  std::list<TimelineTrack> tracks_ ABSL_GUARDED_BY(mutex_);
  bool recording_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time begun_ ABSL_GUARDED_BY(mutex_);
  absl::Time wall_begun_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace slackline
