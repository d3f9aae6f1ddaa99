// GrantBook: who trains on which examples, in a job with elastic sampling.
//
// Workers ask for the examples of one step after the other
// (wire::NextExamples). The book gives out the places of each epoch's order
// from first to last, what a worker had that is gone before all else, and the
// next epoch when one is used up. So every place is done once, whoever is fast,
// slow, new or dead; only what a worker was at when it died is done anew by
// another, perhaps after servers have got a part of its gradients.
//
// A worker for which nothing is left waits: a range may come back. Should
// others go on to clocks that it has not reached, it is told to leave out the
// steps up to there, so that they do not wait for it in turn. When nothing is
// left and nobody trains, all wait at one clock, and the job ends there. Of a
// job that is ended early, examples are left over.
//
// Deterministic state machine. Thread-compatible.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "common/ids.h"
#include "proto/control.pb.h"
#include "server/coordinator/state/kept_state.h"

namespace slackline {

class GrantBook {
 public:
  struct Caller {
    PeerId peer;
    uint64_t call_id = 0;  // Later calls of an incarnation have larger ones.
    Incarnation incarnation = 0;
  };
  struct Answer {
    Caller to;
    wire::Code code = wire::OK;
    std::string error;
    wire::GrantedExamples granted;
  };
  // A worker is given no more than so many ranges that are not done.
  static constexpr int64_t kOpenMax = 64;

  // InvalidArgument-like: empty, or why these numbers make no sense.
  static std::string WhyUnfit(const wire::Elastic& elastic);

  // The job begins. `elastic` makes sense; absent: every call is refused.
  void Start(const std::optional<wire::Elastic>& elastic);
  // All examples are given out, and none has come back.
  bool used_up() const {
    return elastic_.has_value() && next_ == elastic_->total() &&
           returned_.empty();
  }

  // Appends the answers that are due now. Others wait.
  void Ask(const Caller& caller, const wire::NextExamples& asked,
           std::vector<Answer>* answers);
  // It does a step with examples that it has. Answered at once, without any.
  void OnHasExamples(const Caller& caller, Clock clock,
                     std::vector<Answer>* answers);
  // The worker is gone: what it had goes to others.
  void Forget(Incarnation incarnation, std::vector<Answer>* answers);

  // The clock at which all `workers` wait while nothing is left to be done, if
  // that is so.
  std::optional<Clock> EndOf(const std::vector<Incarnation>& workers) const;

  // The job ends at this clock, now or when all have come there. Nobody waits
  // before it any more. Once: a later call changes nothing.
  void EndAt(Clock end, std::vector<Answer>* answers);
  // All examples are given out, and all have come to that clock: the last
  // ranges are done. Of a job that is ended early nobody knows it of the last
  // ones.
  void Ended();

  // For the next coordinator: what is new since the last call; and everything
  // of a job that has begun with these examples. `peer_of` says where a worker
  // is: nullptr: it is no member, and the state is broken. InvalidArgument: of
  // the state.
  void Keep(KeptState* kept);
  absl::Status Load(const std::optional<wire::Elastic>& elastic,
                    const StateReader& reader,
                    absl::FunctionRef<const PeerId*(Incarnation)> peer_of);

  // The epoch of the examples that are given next, in an elastic job.
  int64_t next_epoch() const {
    const int64_t next = returned_.empty() ? next_ : returned_.front().begin;
    return elastic_.has_value() ? next / elastic_->examples() : 0;
  }
  int64_t examples_done() const { return examples_done_; }
  int64_t examples_given_again() const { return examples_given_again_; }
  size_t workers() const { return workers_.size(); }

 private:
  // InvalidArgument, FailedPrecondition: why no worker can be at that clock.
  absl::Status WhyNotAt(Clock clock) const;
  // Positions of the job: epoch * examples + place.
  struct Range {
    int64_t begin = 0;
    int64_t end = 0;
  };
  struct Worker {
    Caller call;  // The last one.
    // `call` is not answered yet.
    bool waits = false;
    // Where it says that it is; after an answer, where its next call will come
    // from.
    Clock clock = 0;
    int64_t given = 0;
    int64_t done = 0;
    std::deque<Range> open;  // Given and not done, oldest first.
    // The ranges in `open` are done when all have come to its clock.
    bool reduced = false;
    wire::GrantedExamples last;  // The last answer.
  };

  // What is said of a worker from now on is new.
  Worker& Change(Incarnation incarnation) {
    changed_.insert(incarnation);
    return workers_[incarnation];
  }
  // Answers those for whom there is something.
  void Settle(std::vector<Answer>* answers);
  std::optional<Range> Take();
  wire::GrantedExamples GrantOf(const Range& range) const;

  std::optional<wire::Elastic> elastic_;
  int64_t next_ = 0;            // Position.
  std::deque<Range> returned_;  // Given out before, and not done.
  Clock end_ = 0;               // The job's end; 0: not known.
  std::map<Incarnation, Worker> workers_;
  std::deque<Incarnation> queue_;  // Who waits, the longest first.
  int64_t examples_done_ = 0;
  int64_t examples_given_again_ = 0;
  std::set<Incarnation> changed_;  // Workers that have changed since Keep().
};

}  // namespace slackline
