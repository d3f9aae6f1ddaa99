#include "worker/core/patience.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

// A worker is run at least so often, since heartbeats are due.
constexpr absl::Duration kGapMax = absl::Seconds(1);
// How long somebody waits before its log says for whom.
constexpr int kTellLeases = 3;

}  // namespace

Patience::Patience(absl::Duration wait_timeout)
    : wait_timeout_(wait_timeout), awake_(kGapMax) {}

void Patience::Start(absl::Time now) {
  view_at_ = now;
  progress_at_ = now;
}

absl::Duration Patience::Wake(absl::Time now) {
  const absl::Duration missed = awake_.Run(now);
  if (missed == absl::ZeroDuration()) return missed;
  // What was handled just before, after the pause, was no earlier than it.
  progress_at_ = std::min(progress_at_ + missed, now);
  view_at_ = std::min(view_at_ + missed, now);
  return missed;
}

void Patience::SawBytes(uint64_t bytes, bool has_pulled, absl::Time now) {
  if (bytes != bytes_ || has_pulled) progress_at_ = now;
  bytes_ = bytes;
}

void Patience::SawOthers(const ClientWaiting& waiting, absl::Time now) {
  if (waiting.kind != ClientWaiting::Kind::kWorkers) return;
  const std::pair<std::optional<Rank>, Clock> seen{waiting.rank, waiting.clock};
  if (seen.first == waited_for_.first && seen.second > waited_for_.second)
    progress_at_ = now;
  waited_for_ = seen;
}

void Patience::CameNearer(absl::Duration since_progress, absl::Time now) {
  progress_at_ = std::max(progress_at_, now - since_progress);
}

absl::Time Patience::Deadline() const {
  return std::max(progress_at_, view_at_) + wait_timeout_;
}

bool Patience::IsToTell(absl::Time now, absl::Duration lease) const {
  return now >= tell_at_ && lease != absl::ZeroDuration();
}

std::optional<std::string> Patience::Sentence(
    const run::WorkerProgress& progress, absl::Time now, absl::Duration lease) {
  const absl::Duration first = lease * kTellLeases;
  using P = run::WorkerProgress;
  const bool waits = progress.activity() == P::WAITING_FOR_SERVER ||
                     progress.activity() == P::WAITING_FOR_WORKERS;
  const absl::Duration waited =
      waits ? absl::Milliseconds(progress.for_ms()) : absl::ZeroDuration();
  const absl::Time since = now - waited;
  std::optional<std::string> sentence;
  // Progress is given in whole milliseconds.
  if (waited < first || since > told_since_ + absl::Milliseconds(2))
    tell_after_ = first;
  if (waits && waited >= tell_after_) {
    sentence = absl::StrCat(
        "clock ", progress.clock(), ": ", progress.what(),
        ", without progress for ",
        absl::FormatDuration(absl::Trunc(waited, absl::Seconds(1))));
    told_since_ = since;
    tell_after_ = waited * 2;
  }
  tell_at_ = now + tell_after_ - waited;
  return sentence;
}

}  // namespace slackline
