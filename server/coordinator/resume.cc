#include "server/coordinator/resume.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/optim/optimizer.h"
#include "common/shortened.h"
#include "common/sync/phases.h"

namespace slackline {
namespace {

constexpr size_t kNameBytesShown = 64;

// "weight[128, 10]", of a table here or there.
template <typename Table>
std::string TextOf(const Table& table) {
  return absl::StrCat(Shortened(table.name(), kNameBytesShown), "[",
                      absl::StrJoin(table.shape(), ", "), "]");
}

// "adam".
std::string KindOf(const config::Optimizer& optimizer) {
  const auto* const field =
      config::Optimizer::GetDescriptor()->FindFieldByNumber(
          optimizer.kind_case());
  return field == nullptr ? "none" : field->name();
}

// Whether two optimizers of one kind keep the same of each parameter.
bool KeepTheSame(const config::Optimizer& a, const config::Optimizer& b) {
  const absl::StatusOr<Optimizer> of_a = Optimizer::Create(a);
  const absl::StatusOr<Optimizer> of_b = Optimizer::Create(b);
  // What is wrong with one of them is said elsewhere.
  if (!of_a.ok() || !of_b.ok()) return true;
  return of_a->slot_count() == of_b->slot_count() &&
         a.rmsprop().centered() == b.rmsprop().centered();
}

bool HasSameSteps(const checkpoint::Manifest& manifest,
                  const wire::View& view) {
  return manifest.steps_per_epoch() == view.steps_per_epoch() &&
         manifest.workers() == view.worker_size();
}

// The checkpoint's clock, in the steps of the job.
Clock ScaledClock(const checkpoint::Manifest& manifest,
                  const wire::View& view) {
  if (HasSameSteps(manifest, view) || manifest.steps_per_epoch() <= 0)
    return manifest.clock();
  // The quotient alone could be rounded to below a half.
  return std::llround(static_cast<double>(manifest.clock()) *
                      static_cast<double>(view.steps_per_epoch()) /
                      static_cast<double>(manifest.steps_per_epoch()));
}

}  // namespace

std::string WhyNotFrom(const checkpoint::Manifest& manifest,
                       const wire::View& view) {
  if (view.elastic()) {
    return "with elastic sampling nobody knows which examples were done before "
           "it; take static sampling";
  }
  if (const Clock clock = ScaledClock(manifest, view);
      clock > view.steps_total()) {
    return absl::StrCat("it is at step ", clock, ", and the job has ",
                        view.steps_total(),
                        " steps; raise train.epochs, or take the model as it "
                        "is there with slackline export");
  }
  std::map<std::string, const checkpoint::Table*> stored;
  for (const checkpoint::Table& table : manifest.table())
    stored[table.name()] = &table;
  for (const wire::Table& table : view.table()) {
    const auto found = stored.find(table.name());
    if (found == stored.end()) {
      return absl::StrCat("the job has table ", TextOf(table),
                          ", which the checkpoint has not; train the model "
                          "that was trained there");
    }
    const checkpoint::Table& there = *found->second;
    stored.erase(found);
    if (TextOf(there) != TextOf(table)) {
      return absl::StrCat("the job has table ", TextOf(table),
                          " where the checkpoint has ", TextOf(there),
                          "; train the model that was trained there");
    }
    const config::Optimizer& was = there.optimizer();
    if (was.kind_case() != config::Optimizer::KIND_NOT_SET &&
        was.kind_case() != table.optimizer().kind_case()) {
      return absl::StrCat("table ", TextOf(table), " has the optimizer ",
                          KindOf(table.optimizer()),
                          " and in the checkpoint the state of ", KindOf(was),
                          "; take optimizer { ", KindOf(was),
                          " { ... } }, whose numbers may be others");
    }
    if (was.kind_case() == table.optimizer().kind_case() &&
        !KeepTheSame(was, table.optimizer())) {
      return absl::StrCat("table ", TextOf(table), " has the optimizer ",
                          table.optimizer().ShortDebugString(),
                          ", which keeps other things of each parameter than ",
                          was.ShortDebugString(),
                          " in the checkpoint; take amsgrad, centered and "
                          "whether there is momentum from there");
    }
  }
  if (!stored.empty()) {
    return absl::StrCat("the checkpoint has table ",
                        TextOf(*stored.begin()->second),
                        ", which the job has not; train the model that was "
                        "trained there");
  }
  return "";
}

std::map<int32_t, Clock> BeginningsOf(const checkpoint::Manifest& manifest,
                                      const wire::View& view) {
  const Clock end = view.steps_total();
  const bool same_steps = HasSameSteps(manifest, view);
  const Clock smallest = std::clamp<Clock>(ScaledClock(manifest, view), 0, end);
  std::map<int32_t, Clock> beginnings;
  for (const wire::WorkerMember& worker : view.worker())
    beginnings[worker.rank()] = smallest;
  if (!same_steps) return beginnings;
  std::map<int32_t, Clock> own = beginnings;
  Clock largest = smallest;
  for (const checkpoint::WorkerClock& worker : manifest.worker()) {
    const auto listed = own.find(worker.rank());
    if (listed == own.end()) continue;
    listed->second = std::clamp<Clock>(worker.clock(), smallest, end);
    largest = std::max(largest, listed->second);
  }
  // By all-reduce they have one clock, and where a phase begins they meet.
  const int phase = PhaseIndexAt(view, smallest);
  const bool may_differ = !IsDoneTogether(StepAt(view, smallest)) &&
                          PhaseIndexAt(view, largest) == phase;
  return may_differ ? own : beginnings;
}

}  // namespace slackline
