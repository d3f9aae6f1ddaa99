#include "common/sync/staleness_gate.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace slackline {
namespace {

void SortByPlace(std::vector<ParkedPull>* parked) {
  const auto earlier = [](const ParkedPull& a, const ParkedPull& b) {
    return a.place < b.place;
  };
  // They nearly always are.
  if (std::is_sorted(parked->begin(), parked->end(), earlier)) return;
  std::sort(parked->begin(), parked->end(), earlier);
}

}  // namespace

bool StalenessGate::Admits(const Participants& participants, Clock complete,
                           const Pull& pull) {
  if (participants.MinClock() < pull.needed || complete < pull.complete)
    return false;
  const Participant* const puller =
      participants.Find(pull.rank, pull.incarnation);
  return puller != nullptr && puller->clock >= pull.own_clock;
}

bool StalenessGate::Park(const Pull& pull) {
  const auto [at, added] = parked_.try_emplace(pull.rank);
  ParkedPull& parked = at->second;
  const bool repeated = !added && parked.pull.request_id == pull.request_id;
  if (added) parked.place = next_place_++;
  const absl::Time since = repeated ? parked.pull.since : pull.since;
  parked.pull = pull;
  parked.pull.since = since;
  AddWait(&Pull::needed, parked, &for_all_);
  AddWait(&Pull::complete, parked, &for_complete_);
  return !repeated;
}

void StalenessGate::AddWait(Clock GatedPull::*clock, const ParkedPull& parked,
                            Waits* waits) const {
  constexpr Clock kFirst = 0;  // Nobody has to wait for that.
  const auto wait_of = [&](const ParkedPull& of) {
    return Wait{
        .clock = of.pull.*clock, .place = of.place, .rank = of.pull.rank};
  };
  if (parked.pull.*clock <= kFirst) return;
  if (waits->size() < 2 * parked_.size()) {
    waits->push_back(wait_of(parked));
    std::push_heap(waits->begin(), waits->end());
    return;
  }
  waits->clear();
  for (const auto& [rank, other] : parked_) {
    if (other.pull.*clock > kFirst) waits->push_back(wait_of(other));
  }
  std::make_heap(waits->begin(), waits->end());
}

void StalenessGate::Release(const Participants& participants, Clock complete,
                            std::optional<Rank> changed,
                            std::vector<Pull>* admitted) {
  std::vector<ParkedPull> gone;
  const auto look_at = [&](Rank rank) {
    const auto at = parked_.find(rank);
    if (at == parked_.end() ||
        !Admits(participants, complete, at->second.pull)) {
      return;
    }
    gone.push_back(std::move(at->second));
    parked_.erase(at);
  };
  const auto look_at_reached = [&](Waits& waits, Clock reached) {
    while (!waits.empty() && waits.front().clock <= reached) {
      const Rank rank = waits.front().rank;
      std::pop_heap(waits.begin(), waits.end());
      waits.pop_back();
      look_at(rank);
    }
  };
  look_at_reached(for_all_, participants.MinClock());
  look_at_reached(for_complete_, complete);
  if (changed.has_value()) {
    look_at(*changed);
  } else {
    std::vector<Rank> ranks;
    ranks.reserve(parked_.size());
    for (const auto& [rank, parked] : parked_) ranks.push_back(rank);
    for (const Rank rank : ranks) look_at(rank);  // In order below.
  }
  SortByPlace(&gone);
  for (ParkedPull& parked : gone) admitted->push_back(std::move(parked.pull));
}

void StalenessGate::ForgetStrangers(const Participants& participants) {
  absl::erase_if(parked_, [&](const auto& entry) {
    const Pull& pull = entry.second.pull;
    return participants.Find(pull.rank, pull.incarnation) == nullptr;
  });
}

std::vector<ParkedPull> StalenessGate::InOrder() const {
  std::vector<ParkedPull> parked;
  parked.reserve(parked_.size());
  for (const auto& [rank, entry] : parked_) parked.push_back(entry);
  SortByPlace(&parked);
  return parked;
}

std::vector<StalenessGate::Pull> StalenessGate::Parked() const {
  std::vector<Pull> pulls;
  for (const ParkedPull& parked : InOrder()) pulls.push_back(parked.pull);
  return pulls;
}

std::vector<StalenessGate::Pull> StalenessGate::TakeParked() {
  std::vector<Pull> pulls = Parked();
  *this = StalenessGate();
  return pulls;
}

}  // namespace slackline
