#include "server/coordinator/straggler_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/metrics/step_phases.h"
#include "common/sync/modes/mode.h"
#include "common/sync/modes/mode_rule.h"
#include "server/coordinator/time_text.h"

namespace slackline {
namespace {

// Another phase is named when it has that much more of the excess.
constexpr double kNamedAnewAbove = 1.5;

double Ratio(double now, double measure) {
  return measure > 0 ? now / measure : 0;
}

std::string WhoText(const run::Straggler& alarm) {
  if (alarm.has_server()) return absl::StrCat("server ", alarm.server(), " is");
  return alarm.has_rank() ? absl::StrCat("worker ", alarm.rank(), " is")
                          : "all workers are";
}

std::string SentenceOf(const run::Straggler& alarm) {
  return absl::StrFormat(
      "%s %.1f times slower than %s since step %d: %s takes %s, %s",
      WhoText(alarm), alarm.times(),
      alarm.than_before() ? "before" : "the others", alarm.since_clock(),
      alarm.phase(), TimeText(alarm.seconds()),
      alarm.than_before()
          ? absl::StrCat(TimeText(alarm.measure_seconds()), " before")
          : absl::StrCat("theirs ", TimeText(alarm.measure_seconds())));
}

std::string EndOfAlarm(const run::Straggler& alarm) {
  return absl::StrCat(WhoText(alarm), alarm.than_before()
                                          ? " as fast as before again"
                                          : " even with the others again");
}

bool SameAlarm(const run::Straggler& a, const run::Straggler& b) {
  return a.has_rank() == b.has_rank() && a.rank() == b.rank() &&
         a.has_server() == b.has_server() && a.server() == b.server();
}

bool HasServer(const wire::View& view, int32_t index) {
  return std::any_of(view.server().begin(), view.server().end(),
                     [index](const wire::ServerMember& server) {
                       return server.index() == index;
                     });
}

}  // namespace

const char* StragglerWatch::NameOf(int phase) {
  // As in run::StepPhases.
  constexpr const char* kNames[kPhases] = {"loading", "computing", "pushing",
                                           "pulling"};
  return kNames[phase];
}

void StragglerWatch::OnReport(Incarnation worker,
                              const run::WorkerStats& stats) {
  slow_servers_.OnReport(worker, stats);
  if (stats.recent().count() < options_.steps_min) return;
  Worker& known = workers_[worker];
  if (known.report == 0)
    known.relative.even_at = known.individual.even_at =
        std::max<Clock>(stats.clock() - stats.recent().count(), 0);
  known.report = ++reports_;
  known.clock = stats.clock();
  known.recent = stats.recent();
}

void StragglerWatch::Clear() {
  workers_.clear();
  alarms_.clear();
  of_all_.reset();
  servers_.Clear();
  slow_server_.reset();
  slow_servers_.Clear();
}

// The view says whose figures count: workers that are done, or are not in it,
// are forgotten.
void StragglerWatch::TakeFigures(const wire::View& view) {
  std::map<Incarnation, Worker> kept;
  double reducing_min = INFINITY;
  for (const wire::WorkerMember& member : view.worker()) {
    const auto known = workers_.find(member.incarnation());
    if (member.done() || known == workers_.end()) continue;
    Worker& worker =
        kept.emplace(member.incarnation(), std::move(known->second))
            .first->second;
    worker.rank = member.rank();
    reducing_min = std::min(reducing_min, worker.recent.mean().reducing());
  }
  workers_ = std::move(kept);
  for (auto& [incarnation, worker] : workers_) {
    const run::StepPhases& mean = worker.recent.mean();
    worker.now = {mean.loading(), mean.computing(), mean.pushing(),
                  mean.pulling(), OwnSeconds(mean), worker.recent.deviation(),
                  // The worker that comes last to all-reduce waits for nobody.
                  mean.waiting() + mean.reducing() - reducing_min,
                  OwnSeconds(mean) + mean.waiting() + mean.reducing()};
  }
}

void StragglerWatch::Compare(const Worker& worker, const Figures& measure,
                             double steps, int64_t all_heard, bool than_before,
                             Comparison* comparison) {
  const double own = worker.now[kOwn];
  const double excess = own - measure[kOwn];
  const double least = absl::ToDoubleSeconds(options_.excess_min);
  if (own < measure[kOwn] * options_.ends_below || excess < least / 2) {
    *comparison = {.even_at = worker.clock};
    return;
  }
  if (comparison->uneven_since == 0) comparison->uneven_since = worker.report;
  if (!comparison->alarm.has_value()) {
    const double error =
        std::sqrt(worker.now[kDeviation] * worker.now[kDeviation] /
                      worker.recent.count() +
                  measure[kDeviation] * measure[kDeviation] / steps);
    if (own <= measure[kOwn] * options_.begins_above ||
        excess <= std::max(least, options_.errors_min * error) ||
        all_heard < comparison->uneven_since) {
      return;
    }
    run::Straggler& alarm = comparison->alarm.emplace();
    alarm.set_rank(worker.rank);
    alarm.set_since_clock(comparison->even_at);
    alarm.set_than_before(than_before);
  }
  run::Straggler& alarm = *comparison->alarm;
  int phase = 0;
  const auto excess_of = [&](int of) { return worker.now[of] - measure[of]; };
  for (int other = 1; other < kPhases; ++other) {
    if (excess_of(other) > excess_of(phase)) phase = other;
  }
  for (int named = 0; named < kPhases; ++named) {
    if (alarm.phase() == NameOf(named) &&
        excess_of(phase) < kNamedAnewAbove * excess_of(named)) {
      phase = named;
    }
  }
  alarm.set_phase(NameOf(phase));
  alarm.set_times(Ratio(own, measure[kOwn]));
  alarm.set_seconds(worker.now[phase]);
  alarm.set_measure_seconds(measure[phase]);
  alarm.set_sentence(SentenceOf(alarm));
}

void StragglerWatch::BeginPastAnew(Worker* worker) const {
  worker->past_steps = 0;
  worker->past_until = worker->recent.steps();
  worker->individual = {.even_at = worker->clock};
}

void StragglerWatch::AddToPast(Worker* worker) const {
  const int64_t steps = worker->recent.steps() - worker->past_until;
  // Else the means overlap, or it is not how the worker mostly is.
  if (steps < worker->recent.count() || worker->HasAlarm()) return;
  worker->past_until = worker->recent.steps();
  worker->past_steps = std::min(worker->past_steps + worker->recent.count(),
                                options_.past_steps);
  const double weight = static_cast<double>(worker->recent.count()) /
                        static_cast<double>(worker->past_steps);
  for (int i = 0; i < kFigures; ++i)
    worker->past[i] += weight * (worker->now[i] - worker->past[i]);
}

void StragglerWatch::Settle(const std::vector<Worker*>& known, News* news) {
  const auto settled = [this](const Worker* worker) {
    return worker->individual.alarm.has_value() &&
           worker->clock - worker->individual.even_at >= options_.settled_after;
  };
  const bool all =
      of_all_.has_value() && std::any_of(known.begin(), known.end(), settled);
  for (Worker* worker : known) {
    if (!settled(worker) && !(all && worker->individual.alarm.has_value()))
      continue;
    BeginPastAnew(worker);
    std::erase_if(alarms_, [&](const run::Straggler& alarm) {
      if (!alarm.than_before() || alarm.has_server() ||
          (alarm.has_rank() && alarm.rank() != worker->rank)) {
        return false;
      }
      news->ended.push_back(absl::StrCat(
          WhoText(alarm), " measured by the last steps from here on, after ",
          options_.settled_after, " that were slower than before"));
      return true;
    });
  }
}

void StragglerWatch::LookAtAll(const std::vector<Worker*>& known) {
  std::vector<const run::Straggler*> slower;
  size_t uneven = 0;
  for (const Worker* worker : known) {
    uneven += worker->individual.uneven_since != 0;
    if (worker->individual.alarm.has_value())
      slower.push_back(&*worker->individual.alarm);
  }
  // Of two it may be one that gets the other's share of something.
  const auto most = [&](size_t count) {
    return known.size() > 1 && 2 * count > known.size();
  };
  if (most(uneven)) {
    for (Worker* worker : known)
      worker->individual.of_all = worker->individual.uneven_since != 0;
  }
  if (!most(slower.size())) return of_all_.reset();
  std::sort(slower.begin(), slower.end(),
            [](const run::Straggler* a, const run::Straggler* b) {
              return a->times() < b->times();
            });
  const run::Straggler& middle = *slower[slower.size() / 2];
  const int64_t since =
      of_all_.has_value() ? of_all_->since_clock() : middle.since_clock();
  of_all_ = middle;
  of_all_->clear_rank();
  of_all_->set_since_clock(since);
  of_all_->set_sentence(SentenceOf(*of_all_));
}

void StragglerWatch::LookAtServers(const wire::View& view, size_t workers,
                                   std::vector<run::Straggler>* now,
                                   News* news) {
  const auto over_servers = [&](const run::Straggler& alarm) {
    return alarm.than_before() && (!alarm.has_rank() || workers == 1) &&
           (alarm.phase() == NameOf(kPushing) ||
            alarm.phase() == NameOf(kPulling));
  };
  const auto alarm = std::find_if(now->begin(), now->end(), over_servers);
  servers_.Prune(view);
  slow_servers_.Look(view, servers_);
  const std::optional<run::Straggler>& of_server = slow_servers_.alarm();
  servers_.SetSuspects(alarm != now->end() || of_server.has_value());
  if (of_server.has_value()) {
    now->push_back(*of_server);
    return slow_server_.reset();
  }
  if (alarm == now->end()) return slow_server_.reset();
  const std::optional<ServerPace::Slow> slow = servers_.Slowest();
  if (!slow.has_value()) return slow_server_.reset();
  alarm->set_sentence(absl::StrCat(alarm->sentence(), "; ", slow->sentence));
  // With the alarm itself, if that is new.
  const bool alarm_is_new = std::none_of(
      alarms_.begin(), alarms_.end(), [&](const run::Straggler& before) {
        return SameAlarm(before, *alarm) && before.phase() == alarm->phase();
      });
  if (slow_server_ != slow->server && !alarm_is_new)
    news->begun.push_back(slow->sentence);
  slow_server_ = slow->server;
}

std::string StragglerWatch::AdviceFor(const Figures& others, int slow,
                                      int workers,
                                      const wire::View& view) const {
  if (view.entered() < 0 || view.entered() >= view.phase_size()) return "";
  const sync::Mode& mode = view.phase(static_cast<int>(view.entered())).mode();
  if (!RuleOf(mode).waits_for_slowest()) return "";
  const double waiting = others[kWaiting];
  const double step = others[kStep];
  if (waiting < options_.waiting_min * step || waiting >= step) return "";
  std::string modes = "asp";
  if (sync::Mode backup; 2 * slow <= workers) {
    backup.mutable_backup()->set_workers(slow);
    modes = absl::StrCat(ModeText(backup), " or asp");
  }
  return absl::StrFormat(
      "in %s the others wait %s of the %s of a step; %s would not wait, and do "
      "up to %.1f times as many",
      ModeText(mode), TimeText(waiting), TimeText(step), modes,
      step / (step - waiting));
}

void StragglerWatch::Say(const wire::View& view,
                         const std::vector<run::Straggler>& now,
                         const std::vector<Worker*>& known, News* news) const {
  for (const run::Straggler& alarm : now) {
    const auto before = std::find_if(
        alarms_.begin(), alarms_.end(),
        [&](const run::Straggler& other) { return SameAlarm(alarm, other); });
    if (before != alarms_.end() && before->phase() == alarm.phase() &&
        before->than_before() == alarm.than_before()) {
      continue;
    }
    news->begun.push_back(absl::StrCat(
        alarm.sentence(), alarm.advice().empty() ? "" : "; ", alarm.advice()));
  }
  for (const run::Straggler& alarm : alarms_) {
    // Of one that is gone or done other things are said.
    const bool here =
        alarm.has_server()
            ? HasServer(view, alarm.server())
            : !alarm.has_rank() ||
                  std::any_of(known.begin(), known.end(),
                              [&](const Worker* worker) {
                                return worker->rank == alarm.rank();
                              });
    if (here &&
        std::none_of(now.begin(), now.end(), [&](const run::Straggler& other) {
          return SameAlarm(alarm, other);
        })) {
      news->ended.push_back(EndOfAlarm(alarm));
    }
  }
}

StragglerWatch::News StragglerWatch::Look(const wire::View& view) {
  News news;
  const bool other_mode = mode_phase_ != view.entered();
  mode_phase_ = view.entered();
  TakeFigures(view);
  std::vector<Worker*> known;
  int64_t all_heard = reports_;
  std::array<std::vector<double>, kFigures> sorted;
  for (auto& [incarnation, worker] : workers_) {
    known.push_back(&worker);
    all_heard = std::min(all_heard, worker.report);
    for (int i = 0; i < kFigures; ++i) sorted[i].push_back(worker.now[i]);
    if (other_mode) BeginPastAnew(&worker);
  }
  if (other_mode) {
    of_all_.reset();
    servers_.Clear();  // A step is other work for them.
    slow_servers_.Clear();
    std::erase_if(alarms_, [](const run::Straggler& alarm) {
      return alarm.than_before();
    });
  }
  for (std::vector<double>& of_all : sorted)
    std::sort(of_all.begin(), of_all.end());
  // Without the worker itself; the mean of two in the middle.
  const auto median_of_others = [&](const Worker& worker) {
    const size_t others = known.size() - 1;
    Figures median = {};
    for (int i = 0; i < kFigures; ++i) {
      const auto at = [&](size_t place) {
        const bool behind = worker.now[i] <= sorted[i][place];
        return sorted[i][place + (behind ? 1 : 0)];
      };
      median[i] = (at((others - 1) / 2) + at(others / 2)) / 2;
    }
    return median;
  };
  for (Worker* worker : known) {
    run::Slowness& slowness = worker->slowness;
    slowness.Clear();
    slowness.set_rank(worker->rank);
    const auto put = [worker](const Figures& measure, run::StepPhases* phases) {
      const Figures& now = worker->now;
      phases->set_loading(Ratio(now[kLoading], measure[kLoading]));
      phases->set_computing(Ratio(now[kComputing], measure[kComputing]));
      phases->set_pushing(Ratio(now[kPushing], measure[kPushing]));
      phases->set_pulling(Ratio(now[kPulling], measure[kPulling]));
      return Ratio(now[kOwn], measure[kOwn]);
    };
    if (known.size() > 1) {
      const Figures others = median_of_others(*worker);
      slowness.set_relative(put(others, slowness.mutable_relative_phase()));
      Compare(*worker, others, worker->recent.count(), all_heard,
              /*than_before=*/false, &worker->relative);
    } else {
      worker->relative = {.even_at = worker->clock};
    }
    if (worker->past_steps >= options_.past_steps_min) {
      slowness.set_individual(
          put(worker->past, slowness.mutable_individual_phase()));
      Compare(*worker, worker->past, static_cast<double>(worker->past_steps),
              all_heard, /*than_before=*/true, &worker->individual);
    }
    AddToPast(worker);
  }
  Settle(known, &news);
  LookAtAll(known);
  // One that was faster than others, and is even now, holds up nobody; of one
  // that may be slower than others that is said.
  const auto stands_alone = [&](const Worker& worker) {
    return known.size() < 2 ||
           (worker.relative.uneven_since == 0 &&
            worker.slowness.relative() * options_.ends_below >= 1);
  };
  std::vector<run::Straggler> now;
  if (of_all_.has_value()) now.push_back(*of_all_);
  const int slow = static_cast<int>(std::count_if(
      known.begin(), known.end(),
      [](const Worker* worker) { return worker->relative.alarm.has_value(); }));
  for (const Worker* worker : known) {
    if (worker->relative.alarm.has_value()) {
      now.push_back(*worker->relative.alarm);
      now.back().set_advice(AdviceFor(median_of_others(*worker), slow,
                                      static_cast<int>(known.size()), view));
    } else if (worker->individual.alarm.has_value() &&
               !worker->individual.of_all && stands_alone(*worker)) {
      now.push_back(*worker->individual.alarm);
    }
  }
  LookAtServers(view, known.size(), &now, &news);
  Say(view, now, known, &news);
  alarms_ = std::move(now);
  return news;
}

void StragglerWatch::PutStatus(wire::StatusReply* status) const {
  for (const run::Straggler& alarm : alarms_) *status->add_straggler() = alarm;
  for (const auto& [incarnation, worker] : workers_) {
    const run::Slowness& slowness = worker.slowness;
    if (slowness.relative() > 0 || slowness.individual() > 0)
      *status->add_slowness() = slowness;
  }
}

}  // namespace slackline
