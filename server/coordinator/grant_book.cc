#include "server/coordinator/grant_book.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/example_range.h"
#include "common/status.h"

namespace slackline {
namespace {

// So that sums of positions stay far from the end of 64 bits.
constexpr int64_t kPositionMax = int64_t{1} << 60;

ElasticSampling SamplingOf(const wire::Elastic& elastic) {
  return {.examples = elastic.examples(),
          .batch_size = elastic.batch_size(),
          .total = elastic.total()};
}

}  // namespace

std::string GrantBook::WhyUnfit(const wire::Elastic& elastic) {
  const auto wrong = [](const char* what, int64_t value) {
    return absl::StrCat("elastic sampling: ", what, " is ", value,
                        ", it must be in [1, ", kPositionMax, "]");
  };
  const auto bad = [](int64_t value) {
    return value < 1 || value > kPositionMax;
  };
  if (bad(elastic.examples())) return wrong("examples", elastic.examples());
  if (bad(elastic.batch_size()))
    return wrong("batch_size", elastic.batch_size());
  if (bad(elastic.total())) return wrong("total", elastic.total());
  return "";
}

void GrantBook::Start(const std::optional<wire::Elastic>& elastic) {
  elastic_ = elastic;
}

absl::Status GrantBook::WhyNotAt(Clock clock) const {
  if (!elastic_.has_value()) {
    return absl::FailedPreconditionError("the job's sampling is not elastic");
  }
  if (clock < 0 || clock >= kClockMax)
    return absl::InvalidArgumentError(
        absl::StrCat("a call for examples at clock ", clock));
  return absl::OkStatus();
}

void GrantBook::OnHasExamples(const Caller& caller, Clock clock,
                              std::vector<Answer>* answers) {
  if (const absl::Status fits = WhyNotAt(clock); !fits.ok()) {
    answers->push_back({.to = caller,
                        .code = wire::REJECTED,
                        .error = std::string(fits.message()),
                        .granted = {}});
    return;
  }
  Worker& worker = Change(caller.incarnation);
  // Who waits has come further since it said that.
  if (!worker.waits) worker.clock = std::max<Clock>(worker.clock, clock + 1);
  answers->push_back(
      {.to = caller, .code = wire::OK, .error = {}, .granted = {}});
  Settle(answers);
}

void GrantBook::Ask(const Caller& caller, const wire::NextExamples& asked,
                    std::vector<Answer>* answers) {
  const auto refuse = [&](std::string why) {
    answers->push_back({.to = caller,
                        .code = wire::REJECTED,
                        .error = std::move(why),
                        .granted = {}});
  };
  if (const absl::Status fits = WhyNotAt(asked.clock()); !fits.ok())
    return refuse(std::string(fits.message()));
  Worker& worker = Change(caller.incarnation);
  if (caller.call_id < worker.call.call_id) return;  // Of no use any more.
  if (caller.call_id == worker.call.call_id) {       // Repeated.
    if (!worker.waits)
      answers->push_back({.to = caller,
                          .code = wire::OK,
                          .error = {},
                          .granted = worker.last});
    return;
  }
  if (asked.done() < worker.done || asked.done() > asked.received() ||
      asked.received() > worker.given) {
    return refuse(absl::StrCat("a call for examples with ", asked.done(),
                               " ranges done of ", asked.received(),
                               " received; ", worker.done, " were done of ",
                               worker.given, " given"));
  }
  for (; worker.done < asked.done(); ++worker.done) {
    const Range& range = worker.open.front();
    examples_done_ += range.end - range.begin;
    worker.open.pop_front();
  }
  const bool waited = worker.waits;
  worker.call = caller;
  worker.clock = asked.clock();
  worker.reduced = asked.reduced();
  worker.waits = true;
  if (asked.received() < worker.given) {
    // The answer to an earlier call never came, or was not waited for.
    const int64_t lost = asked.received() - worker.done;
    worker.last = GrantOf(worker.open[static_cast<size_t>(lost)]);
    worker.waits = false;
    ++worker.clock;
    if (waited)
      queue_.erase(std::find(queue_.begin(), queue_.end(), caller.incarnation));
    answers->push_back(
        {.to = caller, .code = wire::OK, .error = {}, .granted = worker.last});
  } else if (!waited) {
    queue_.push_back(caller.incarnation);
  }
  Settle(answers);
}

void GrantBook::Forget(Incarnation incarnation, std::vector<Answer>* answers) {
  const auto found = workers_.find(incarnation);
  if (found == workers_.end()) return;
  if (found->second.waits)
    queue_.erase(std::find(queue_.begin(), queue_.end(), incarnation));
  for (const Range& range : found->second.open) {
    examples_given_again_ += range.end - range.begin;
    returned_.push_back(range);
  }
  changed_.insert(incarnation);
  workers_.erase(found);
  Settle(answers);
}

std::optional<GrantBook::Range> GrantBook::Take() {
  Range range;
  if (!returned_.empty()) {
    range = returned_.front();
    returned_.pop_front();
    return range;
  }
  if (next_ == elastic_->total()) return std::nullopt;
  range = {.begin = next_, .end = EndOfRange(SamplingOf(*elastic_), next_)};
  next_ = range.end;
  return range;
}

wire::GrantedExamples GrantBook::GrantOf(const Range& range) const {
  wire::GrantedExamples granted;
  wire::Examples& examples = *granted.mutable_examples();
  const ExampleRange places =
      PlacesOf(SamplingOf(*elastic_), range.begin, range.end);
  examples.set_epoch(places.epoch);
  examples.set_begin(places.begin);
  examples.set_end(places.end);
  return granted;
}

void GrantBook::Settle(std::vector<Answer>* answers) {
  const auto answer = [&](Worker& worker, wire::GrantedExamples granted) {
    worker.waits = false;
    worker.last = std::move(granted);
    answers->push_back({.to = worker.call,
                        .code = wire::OK,
                        .error = {},
                        .granted = worker.last});
  };
  std::deque<Incarnation> waiting;
  for (const Incarnation incarnation : queue_) {
    Worker& worker = workers_.at(incarnation);
    std::optional<Range> range;
    if (static_cast<int64_t>(worker.open.size()) < kOpenMax) range = Take();
    if (!range.has_value()) {
      waiting.push_back(incarnation);
      continue;
    }
    changed_.insert(incarnation);
    worker.open.push_back(*range);
    ++worker.given;
    answer(worker, GrantOf(*range));
    ++worker.clock;
  }
  queue_ = std::move(waiting);
  if (queue_.empty()) return;
  // As far as anybody is, or will be after the step that it does now.
  Clock furthest = end_;
  for (const auto& [incarnation, worker] : workers_)
    furthest = std::max(furthest, worker.clock);
  waiting.clear();
  for (const Incarnation incarnation : queue_) {
    Worker& worker = workers_.at(incarnation);
    wire::GrantedExamples granted;
    changed_.insert(incarnation);
    if (worker.clock < furthest) {
      granted.set_skip_to(furthest);
      worker.clock = furthest;
    } else if (worker.open.empty() || worker.reduced) {
      waiting.push_back(incarnation);
      continue;
    }
    answer(worker, std::move(granted));
  }
  queue_ = std::move(waiting);
}

std::optional<Clock> GrantBook::EndOf(
    const std::vector<Incarnation>& workers) const {
  if (!used_up()) return std::nullopt;
  std::optional<Clock> end;
  for (const Incarnation incarnation : workers) {
    const auto worker = workers_.find(incarnation);
    if (worker == workers_.end() || !worker->second.waits ||
        (!worker->second.open.empty() && !worker->second.reduced)) {
      return std::nullopt;
    }
    // Who is behind is told to skip as soon as it asks.
    if (end.has_value() && *end != worker->second.clock) return std::nullopt;
    end = worker->second.clock;
  }
  return end;
}

void GrantBook::EndAt(Clock end, std::vector<Answer>* answers) {
  if (end_ > 0 || !elastic_.has_value()) return;
  end_ = end;
  Settle(answers);
}

void GrantBook::Ended() {
  for (auto& [incarnation, worker] : workers_) {
    changed_.insert(incarnation);
    for (const Range& range : worker.open)
      examples_done_ += range.end - range.begin;
    worker.done += static_cast<int64_t>(worker.open.size());
    worker.open.clear();
  }
}

// ---- For the next coordinator -----------------------------------------------

void GrantBook::Keep(KeptState* kept) {
  if (!elastic_.has_value()) return;
  const auto put = [](const std::deque<Range>& ranges, auto* bounds) {
    for (const Range& range : ranges) {
      bounds->Add(range.begin);
      bounds->Add(range.end);
    }
  };
  coordinator::GrantsState state;
  state.set_next(next_);
  put(returned_, state.mutable_returned());
  state.set_end(end_);
  state.set_examples_done(examples_done_);
  state.set_examples_given_again(examples_given_again_);
  state.mutable_queue()->Add(queue_.begin(), queue_.end());
  kept->Put("grants", state);
  for (const Incarnation incarnation : std::exchange(changed_, {})) {
    const std::string key = NumberedKey("grant", incarnation);
    const auto found = workers_.find(incarnation);
    if (found == workers_.end()) {
      kept->Remove(key);
      continue;
    }
    const Worker& worker = found->second;
    coordinator::WorkerGrants grants;
    grants.set_call_id(worker.call.call_id);
    grants.set_clock(worker.clock);
    grants.set_given(worker.given);
    grants.set_done(worker.done);
    put(worker.open, grants.mutable_open());
    grants.set_reduced(worker.reduced);
    *grants.mutable_last() = worker.last;
    kept->Put(key, grants);
  }
}

absl::Status GrantBook::Load(
    const std::optional<wire::Elastic>& elastic, const StateReader& reader,
    absl::FunctionRef<const PeerId*(Incarnation)> peer_of) {
  elastic_ = elastic;
  if (!elastic_.has_value()) return absl::OkStatus();
  const auto wrong = [](const std::string& why) {
    return absl::InvalidArgumentError(why);
  };
  const auto take = [&](const auto& bounds, std::deque<Range>* ranges) {
    for (int i = 0; i + 1 < bounds.size(); i += 2) {
      const Range range = {.begin = bounds[i], .end = bounds[i + 1]};
      if (range.begin < 0 || range.begin >= range.end ||
          range.end > elastic_->total()) {
        return false;
      }
      ranges->push_back(range);
    }
    return bounds.size() % 2 == 0;
  };
  coordinator::GrantsState state;
  SL_RETURN_IF_ERROR(reader.Read("grants", &state));
  if (state.next() < 0 || state.next() > elastic_->total() ||
      !take(state.returned(), &returned_)) {
    return reader.Broken("grants", "examples that there are not");
  }
  next_ = state.next();
  end_ = state.end();
  examples_done_ = state.examples_done();
  examples_given_again_ = state.examples_given_again();
  SL_RETURN_IF_ERROR(reader.ReadAll<coordinator::WorkerGrants>(
      "grant", [&](uint64_t incarnation, const auto& grants) {
        const PeerId* const peer = peer_of(incarnation);
        if (peer == nullptr) return wrong("there is no such worker");
        Worker& worker = workers_[incarnation];
        worker.call = {.peer = *peer,
                       .call_id = grants.call_id(),
                       .incarnation = incarnation};
        worker.clock = grants.clock();
        worker.given = grants.given();
        worker.done = grants.done();
        worker.reduced = grants.reduced();
        worker.last = grants.last();
        if (!take(grants.open(), &worker.open) || worker.done < 0 ||
            worker.given < worker.done ||
            worker.given - worker.done !=
                static_cast<int64_t>(worker.open.size())) {
          return wrong("examples that there are not");
        }
        return absl::OkStatus();
      }));
  for (const Incarnation incarnation : state.queue()) {
    const auto found = workers_.find(incarnation);
    if (found == workers_.end() || found->second.waits)
      return reader.Broken("grants", "somebody waits that cannot");
    found->second.waits = true;
    queue_.push_back(incarnation);
  }
  return absl::OkStatus();
}

}  // namespace slackline
