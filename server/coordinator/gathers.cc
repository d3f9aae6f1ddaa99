#include "server/coordinator/gathers.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/block/bounds.h"
#include "common/program_place.h"
#include "common/some_names.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr char kBeforeTheFirstBatch[] =
    "place 0 is before the first batch, and this worker has joined the job "
    "already";

std::string Names(const std::set<int32_t>& ranks) {
  std::vector<std::string> names;
  for (const int32_t rank : ranks)
    names.push_back(absl::StrCat("worker ", rank));
  return SomeNames(names);
}

}  // namespace

size_t Gathers::Result::bytes() const {
  size_t bytes = 0;
  for (const Payload& payload : payloads) bytes += payload.size();
  return bytes;
}

void Gathers::Answer(const Caller& to, const Result& result,
                     CoordinatorEffects* effects) {
  Outgoing out = AnswerTo(to.peer, to.call_id, wire::OK);
  wire::Gathered& gathered =
      *out.message.header.mutable_call_reply()->mutable_gathered();
  gathered.mutable_rank()->Add(result.ranks.begin(), result.ranks.end());
  out.message.payloads = result.payloads;
  effects->sends.push_back(std::move(out));
}

const Gathers::Result* Gathers::Kept(const Place& place) const {
  if (place.first == 0) {
    const auto found = kept_of_start_.find(place.second);
    if (found != kept_of_start_.end()) return &found->second;
  }
  const auto found =
      std::find_if(kept_.begin(), kept_.end(),
                   [&](const Result& result) { return result.place == place; });
  return found == kept_.end() ? nullptr : &*found;
}

void Gathers::Keep(Result result) {
  news_ = true;
  const size_t bytes = result.bytes();
  if (result.place.first == 0 &&
      bytes <= options_.kept_bytes_max - bytes_of_start_) {
    bytes_of_start_ += bytes;
    kept_of_start_[result.place.second] = std::move(result);
    return;
  }
  kept_bytes_ += bytes;
  kept_.push_back(std::move(result));
  // The last one stays: answers to it may be lost yet.
  while (kept_.size() > options_.kept_max ||
         (kept_.size() > 1 && kept_bytes_ > options_.kept_bytes_max)) {
    kept_bytes_ -= kept_.front().bytes();
    kept_.pop_front();
  }
}

bool Gathers::IsComplete(const Place& place, const Round& round) const {
  if (place.first == 0)
    return round.size() == static_cast<size_t>(options_.workers);
  return std::none_of(
      positions_.begin(), positions_.end(),
      [&](const auto& entry) { return WaitsFor(entry.second, place, round); });
}

std::set<int32_t> Gathers::Missing(const Place& place,
                                   const Round& round) const {
  std::set<int32_t> missing;
  if (place.first == 0) {
    for (int32_t rank = 0; rank < options_.workers; ++rank)
      if (round.count(rank) == 0) missing.insert(rank);
    return missing;
  }
  for (const auto& [incarnation, position] : positions_) {
    if (WaitsFor(position, place, round)) missing.insert(position.rank);
  }
  return missing;
}

bool Gathers::IsGivenUp(int32_t rank, const Caller& call) {
  Caller& last = last_calls_[rank];
  if (last.peer == call.peer && last.call_id > call.call_id) return true;
  last = call;
  return false;
}

void Gathers::Wait(const Place& place, int32_t rank, Entry entry,
                   CoordinatorEffects* effects) {
  const Caller from = entry.from;
  const auto refuse = [&](wire::Code code, const std::string& error) {
    effects->sends.push_back(AnswerTo(from.peer, from.call_id, code, error));
  };
  if (IsGivenUp(rank, from)) return;
  const size_t bytes_max = GatherBytesMax(options_.workers);
  if (entry.payload.size() > bytes_max) {
    return refuse(
        wire::REJECTED,
        absl::StrCat("a collective takes ", bytes_max, " bytes of each of ",
                     options_.workers, " workers; worker ", rank, " has sent ",
                     entry.payload.size()));
  }
  const auto round = open_.find(place);
  if (round != open_.end()) {
    const auto before = round->second.find(rank);
    if (before != round->second.end() &&
        before->second.from.peer == from.peer &&
        before->second.from.call_id == from.call_id) {
      return refuse(
          wire::RETRY,
          absl::StrCat("waits for ", Names(Missing(place, round->second))));
    }
  }
  // A worker waits once.
  for (auto other = open_.begin(); other != open_.end();) {
    if (other->first != place &&
        (other->first.first == 0) == (place.first == 0)) {
      other->second.erase(rank);
    }
    other = other->second.empty() ? open_.erase(other) : std::next(other);
  }
  open_[place][rank] = std::move(entry);
}

void Gathers::Reach(const Member& worker, const Place& place) {
  changed_.insert(worker.incarnation);
  Position& position = positions_[worker.incarnation];
  position.rank = worker.index();
  position.place = std::max(position.place, place);
}

void Gathers::OnGoesOn(const Member& worker, const wire::Call& call,
                       CoordinatorEffects* effects) {
  if (call.goes_on().place() == 0) {
    effects->sends.push_back(AnswerTo(worker.peer, call.call_id(),
                                      wire::REJECTED, kBeforeTheFirstBatch));
    return;
  }
  Reach(worker, {call.goes_on().place(), 0});
  effects->sends.push_back(AnswerTo(worker.peer, call.call_id(), wire::OK));
}

void Gathers::Enter(const Member& worker, const wire::Call& call,
                    const Payload& payload, CoordinatorEffects* effects) {
  const wire::Gather& gather = call.gather();
  const Place place = {gather.place(), gather.number()};
  const Caller from = {.peer = worker.peer, .call_id = call.call_id()};
  const auto answer = [&](wire::Code code, const std::string& error) {
    effects->sends.push_back(AnswerTo(from.peer, from.call_id, code, error));
  };
  if (place.first == 0) {
    return answer(wire::REJECTED, kBeforeTheFirstBatch);
  }
  Reach(worker, place);
  if (const Result* const kept = Kept(place); kept != nullptr)
    return Answer(from, *kept, effects);
  if (last_.has_value() && place <= *last_) {
    return answer(
        wire::REJECTED,
        absl::StrCat("the others are beyond this collective, and its "
                     "result is not kept any more; worker ",
                     worker.index(), " had left the job, or has skipped it"));
  }
  Wait(place, worker.index(),
       {.from = from, .incarnation = worker.incarnation, .payload = payload},
       effects);
}

void Gathers::EnterBeforeStart(const PeerId& from, const wire::Call& call,
                               const Payload& payload,
                               CoordinatorEffects* effects) {
  const wire::Gather& gather = call.gather();
  const Place place = {gather.place(), gather.number()};
  const Caller caller = {.peer = from, .call_id = call.call_id()};
  const auto refuse = [&](const std::string& error) {
    effects->sends.push_back(
        AnswerTo(from, call.call_id(), wire::REJECTED, error));
  };
  if (place.first != 0 || gather.rank() < 0 ||
      gather.rank() >= options_.workers) {
    return refuse(absl::StrCat("rank ", gather.rank(), " of ", options_.workers,
                               " at place ", place.first,
                               " has not joined the job"));
  }
  if (place.second >= options_.start_max) {
    return refuse(absl::StrCat("there are at most ", options_.start_max,
                               " collectives before the first batch"));
  }
  if (const Result* const kept = Kept(place); kept != nullptr)
    return Answer(caller, *kept, effects);
  if (started_) {
    return refuse(
        "the job runs already, and the result of this collective before the "
        "first batch is not there: the workers that began the job have not "
        "called it, or had called too many");
  }
  Wait(place, gather.rank(),
       {.from = caller, .incarnation = 0, .payload = payload}, effects);
}

void Gathers::Start(const std::map<int32_t, const Member*>& workers,
                    CoordinatorEffects* effects) {
  started_ = true;
  news_ = true;
  for (const auto& [place, round] : open_) {
    for (const auto& [rank, entry] : round) {
      effects->sends.push_back(AnswerTo(
          entry.from.peer, entry.from.call_id, wire::REJECTED,
          absl::StrCat("the job has begun, and ", Names(Missing(place, round)),
                       " did not call this collective before the first "
                       "batch")));
    }
  }
  open_.clear();
  for (const auto& [rank, worker] : workers) {
    changed_.insert(worker->incarnation);
    // Who goes on from a checkpoint calls nothing before its first step, which
    // it may not even begin before another worker's earlier step is done.
    const Clock clock = worker->begins_at;
    positions_[worker->incarnation] = {
        .rank = rank,
        .place = {clock == 0 ? kPlaceBeforeAll : PlaceInStep(clock), 0}};
  }
}

void Gathers::Complete(CoordinatorEffects* effects) {
  for (auto round = open_.begin(); round != open_.end();) {
    if (!IsComplete(round->first, round->second)) {
      ++round;
      continue;
    }
    Result result = {.place = round->first, .ranks = {}, .payloads = {}};
    for (const auto& [rank, entry] : round->second) {
      result.ranks.push_back(rank);
      result.payloads.push_back(entry.payload);
    }
    for (const auto& [rank, entry] : round->second)
      Answer(entry.from, result, effects);
    if (round->first.first > 0) {
      last_ = last_.has_value() ? std::max(*last_, round->first) : round->first;
    }
    round = open_.erase(round);
    Keep(std::move(result));
  }
}

void Gathers::Forget(Incarnation incarnation) {
  changed_.insert(incarnation);
  positions_.erase(incarnation);
  for (auto round = open_.begin(); round != open_.end();) {
    std::erase_if(round->second, [&](const auto& entry) {
      return entry.second.incarnation == incarnation;
    });
    round = round->second.empty() ? open_.erase(round) : std::next(round);
  }
}

size_t Gathers::waiting() const {
  size_t calls = 0;
  for (const auto& [place, round] : open_) calls += round.size();
  return calls;
}

size_t Gathers::bytes() const {
  size_t bytes = bytes_of_start_ + kept_bytes_;
  for (const auto& [place, round] : open_) {
    for (const auto& [rank, entry] : round) bytes += entry.payload.size();
  }
  return bytes;
}

// ---- For the next coordinator -----------------------------------------------

std::string Gathers::KeyOf(const Place& place) {
  return NumberedKey(NumberedKey("gather/of", place.first), place.second);
}

void Gathers::Keep(KeptState* kept) {
  for (const Incarnation incarnation : std::exchange(changed_, {})) {
    const std::string key = NumberedKey("gather/at", incarnation);
    const auto found = positions_.find(incarnation);
    if (found == positions_.end()) {
      kept->Remove(key);
      continue;
    }
    coordinator::GatherPlace place;
    place.set_place(found->second.place.first);
    place.set_number(found->second.place.second);
    place.set_rank(found->second.rank);
    kept->Put(key, place);
  }
  if (!std::exchange(news_, false)) return;
  const auto put = [](const Place& from, coordinator::GatherPlace* to) {
    to->set_place(from.first);
    to->set_number(from.second);
  };
  coordinator::GathersState state;
  state.set_started(started_);
  if (last_.has_value()) put(*last_, state.mutable_last());
  std::set<std::string> keys;
  const auto keep = [&](const Result& result) {
    put(result.place, state.add_kept());
    const std::string key = KeyOf(result.place);
    keys.insert(key);
    kept->PutOnce(key, [&] {
      coordinator::GatherResult value;
      value.mutable_rank()->Add(result.ranks.begin(), result.ranks.end());
      for (const Payload& payload : result.payloads)
        value.add_payload(payload.data(), payload.size());
      return value.SerializeAsString();
    });
  };
  for (const auto& [number, result] : kept_of_start_) keep(result);
  for (const Result& result : kept_) keep(result);
  for (const std::string& key : kept->KeysOf("gather/of/"))
    if (keys.count(key) == 0) kept->Remove(key);
  kept->Put("gathers", state);
}

absl::Status Gathers::Load(const StateReader& reader,
                           absl::FunctionRef<bool(Incarnation)> is_member) {
  coordinator::GathersState state;
  SL_RETURN_IF_ERROR(reader.Read("gathers", &state));
  started_ = state.started();
  const auto place_of = [](const coordinator::GatherPlace& place) {
    return Place{place.place(), place.number()};
  };
  if (state.has_last()) last_ = place_of(state.last());
  for (const coordinator::GatherPlace& kept : state.kept()) {
    const std::string key = KeyOf(place_of(kept));
    coordinator::GatherResult value;
    if (!reader.Has(key)) return reader.Broken(key, "it is not there");
    SL_RETURN_IF_ERROR(reader.Read(key, &value));
    if (value.rank_size() != value.payload_size())
      return reader.Broken(key, "not one payload of each rank");
    Result result = {.place = place_of(kept), .ranks = {}, .payloads = {}};
    result.ranks.assign(value.rank().begin(), value.rank().end());
    for (const std::string& payload : value.payload())
      result.payloads.push_back(Payload::Copy(payload.data(), payload.size()));
    Keep(std::move(result));
  }
  news_ = false;
  return reader.ReadAll<coordinator::GatherPlace>(
      "gather/at", [&](uint64_t incarnation, const auto& place) {
        if (!is_member(incarnation))
          return absl::InvalidArgumentError("there is no such worker");
        positions_[incarnation] = {.rank = place.rank(),
                                   .place = place_of(place)};
        return absl::OkStatus();
      });
}

}  // namespace slackline
