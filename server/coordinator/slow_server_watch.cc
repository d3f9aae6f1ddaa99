#include "server/coordinator/slow_server_watch.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/coordinator/time_text.h"

namespace slackline {

double SlowServerWatch::Past::deviation() const {
  return std::sqrt(std::max(squares - mean * mean, 0.0));
}

void SlowServerWatch::Add(double figure, Past* past) const {
  past->rounds = std::min(past->rounds + 1, options_.past_rounds);
  past->mean += (figure - past->mean) / past->rounds;
  past->squares += (figure * figure - past->squares) / past->rounds;
}

void SlowServerWatch::OnReport(Incarnation worker,
                               const run::WorkerStats& stats) {
  Totals totals = {.steps = stats.recent().steps(),
                   .phases = stats.phase_seconds(),
                   .answers = {}};
  for (const run::ServerAnswers& answers : stats.answers()) {
    totals.answers[answers.server()] = {.messages = answers.messages(),
                                        .seconds = answers.seconds()};
  }
  const auto [at, is_new] = workers_.try_emplace(worker);
  Worker& known = at->second;
  if (is_new) known.begun = totals;
  known.heard = !is_new;
  known.clock = stats.clock();
  const run::StepPhases& mean = stats.recent().mean();
  known.others =
      mean.loading() + mean.computing() + mean.waiting() + mean.reducing();
  known.last = std::move(totals);
}

void SlowServerWatch::Clear() {
  workers_.clear();
  answers_.clear();
  pushing_ = pulling_ = {};
  suspect_.reset();
  alarm_.reset();
}

void SlowServerWatch::FollowView(const wire::View& view) {
  std::vector<uint64_t> arrangement(view.owner_server().begin(),
                                    view.owner_server().end());
  std::map<Incarnation, Worker> kept;
  for (const wire::WorkerMember& member : view.worker()) {
    if (member.done()) continue;
    arrangement.push_back(member.incarnation());
    const auto known = workers_.find(member.incarnation());
    if (known != workers_.end()) kept.insert(std::move(*known));
  }
  workers_ = std::move(kept);
  if (arrangement == arrangement_) return;
  arrangement_ = std::move(arrangement);
  answers_.clear();
  pushing_ = pulling_ = {};
  suspect_.reset();
  alarm_.reset();
}

SlowServerWatch::Round SlowServerWatch::EndRound() {
  Round round;
  double steps = 0;
  std::map<int32_t, Answers> answers;
  for (auto& [incarnation, worker] : workers_) {
    const Totals& from = worker.begun;
    const Totals& to = worker.last;
    steps += static_cast<double>(to.steps - from.steps);
    round.pushing += to.phases.pushing() - from.phases.pushing();
    round.pulling += to.phases.pulling() - from.phases.pulling();
    round.step += worker.others;
    for (const auto& [server, now] : to.answers) {
      const auto before = from.answers.find(server);
      const Answers then =
          before == from.answers.end() ? Answers() : before->second;
      // A server may have left, and another one have come in its place.
      if (now.messages < then.messages) continue;
      answers[server].messages += now.messages - then.messages;
      answers[server].seconds += now.seconds - then.seconds;
    }
    round.clock = std::max(round.clock, worker.clock);
    worker.begun = worker.last;
    worker.heard = false;
  }
  for (double* const seconds : {&round.pushing, &round.pulling})
    *seconds /= steps;
  round.step = round.step / static_cast<double>(workers_.size()) +
               round.pushing + round.pulling;
  for (const auto& [server, sums] : answers) {
    if (sums.messages == 0) continue;
    round.answer[server] = sums.seconds / static_cast<double>(sums.messages);
  }
  return round;
}

std::optional<double> SlowServerWatch::MedianOfOthers(
    const std::map<int32_t, double>& figures, int32_t server) {
  std::vector<double> others;
  for (const auto& [of, figure] : figures) {
    if (of != server) others.push_back(figure);
  }
  if (others.empty()) return std::nullopt;
  std::sort(others.begin(), others.end());
  return others[others.size() / 2];
}

std::optional<SlowServerWatch::Suspect> SlowServerWatch::FindSlower(
    const Round& round, const ServerPace& pace) const {
  if (!HasPast(pushing_)) return std::nullopt;
  const double excess =
      round.pushing + round.pulling - pushing_.mean - pulling_.mean;
  if (excess < options_.share_min * round.step ||
      excess < absl::ToDoubleSeconds(options_.excess_min)) {
    return std::nullopt;
  }
  std::map<int32_t, double> times;
  for (const auto& [server, seconds] : round.answer) {
    const auto past = answers_.find(server);
    if (past != answers_.end() && HasPast(past->second) &&
        past->second.mean > 0) {
      times[server] = seconds / past->second.mean;
    }
  }
  std::optional<Suspect> slower;
  double most = options_.begins_above;
  for (const auto& [server, more] : times) {
    const Past& past = answers_.at(server);
    if (more < most ||
        round.answer.at(server) <
            past.mean + options_.deviations_min * past.deviation()) {
      continue;
    }
    const std::optional<double> others = MedianOfOthers(times, server);
    // Else it may be the network, or the machine of all.
    if (others.has_value() ? more < options_.begins_above * *others
                           : !pace.SlowOf(server).has_value()) {
      continue;
    }
    most = more;
    slower = {.server = server, .than_before = true, .measure = past.mean};
  }
  return slower;
}

std::optional<SlowServerWatch::Suspect> SlowServerWatch::FindSlow(
    const Round& round, const ServerPace& pace) const {
  if (round.pushing + round.pulling < options_.share_min * round.step)
    return std::nullopt;
  const std::optional<ServerPace::Slow> slow = pace.Bottleneck();
  if (!slow.has_value()) return std::nullopt;
  const auto answer = round.answer.find(slow->server);
  const std::optional<double> others =
      MedianOfOthers(round.answer, slow->server);
  if (answer == round.answer.end() || !others.has_value() ||
      answer->second < options_.begins_above * *others ||
      answer->second - *others < absl::ToDoubleSeconds(options_.excess_min)) {
    return std::nullopt;
  }
  return Suspect{
      .server = slow->server, .than_before = false, .measure = *others};
}

void SlowServerWatch::Describe(const Round& round, const ServerPace& pace) {
  run::Straggler& alarm = *alarm_;
  const double now = round.answer.at(alarm.server());
  const double before = alarm.than_before() ? 1 : 0;
  alarm.set_phase(round.pushing - before * pushing_.mean >
                          round.pulling - before * pulling_.mean
                      ? "pushing"
                      : "pulling");
  alarm.set_measure_seconds(suspect_->measure);
  alarm.set_times(suspect_->measure > 0 ? now / suspect_->measure : 0);
  alarm.set_seconds(now);
  const std::optional<ServerPace::Slow> slow =
      alarm.than_before() ? pace.SlowOf(alarm.server()) : pace.Bottleneck();
  std::string threads =
      "its shard threads do as much in a second of working as before, so look "
      "at its host and the network to it";
  if (slow.has_value() && slow->server == alarm.server()) {
    threads = slow->threads;
  } else if (!alarm.than_before()) {
    threads = "they wait for its shard threads";
  }
  alarm.set_sentence(absl::StrFormat(
      "server %d is %.1f times slower than %s since step %d: an answer takes "
      "%s, %s; of a step of %s workers spend %s on pushing and pulling; %s",
      alarm.server(), alarm.times(),
      alarm.than_before() ? "before" : "the others", alarm.since_clock(),
      TimeText(now),
      alarm.than_before()
          ? absl::StrCat(TimeText(suspect_->measure), " before")
          : absl::StrCat("theirs ", TimeText(suspect_->measure)),
      TimeText(round.step), TimeText(round.pushing + round.pulling), threads));
}

void SlowServerWatch::Judge(const Round& round, const ServerPace& pace) {
  if (alarm_.has_value()) {
    const auto now = round.answer.find(alarm_->server());
    if (!alarm_->than_before()) {
      const std::optional<double> others =
          MedianOfOthers(round.answer, alarm_->server());
      suspect_->measure = others.value_or(suspect_->measure);
    }
    if (now != round.answer.end() &&
        now->second >= options_.ends_below * suspect_->measure) {
      return Describe(round, pace);
    }
    alarm_.reset();
    suspect_.reset();
  }
  std::optional<Suspect> suspect = FindSlower(round, pace);
  if (!suspect.has_value()) suspect = FindSlow(round, pace);
  const bool again = suspect.has_value() && suspect_.has_value() &&
                     suspect->server == suspect_->server &&
                     suspect->than_before == suspect_->than_before;
  rounds_suspected_ = again ? rounds_suspected_ + 1 : 1;
  suspect_ = suspect;
  if (suspect.has_value() && rounds_suspected_ >= options_.rounds_slow) {
    alarm_.emplace();
    alarm_->set_server(suspect->server);
    alarm_->set_than_before(suspect->than_before);
    alarm_->set_since_clock(even_at_);
    return Describe(round, pace);
  }
  if (suspect.has_value()) return;
  even_at_ = round.clock;
  for (const auto& [server, seconds] : round.answer)
    Add(seconds, &answers_[server]);
  Add(round.pushing, &pushing_);
  Add(round.pulling, &pulling_);
}

void SlowServerWatch::Look(const wire::View& view, const ServerPace& pace) {
  FollowView(view);
  int64_t steps = 0;
  bool all_heard = !workers_.empty();
  for (const auto& [incarnation, worker] : workers_) {
    all_heard &= worker.heard;
    steps += worker.last.steps - worker.begun.steps;
  }
  if (all_heard &&
      steps >= options_.steps_min * static_cast<int64_t>(workers_.size())) {
    Judge(EndRound(), pace);
  }
}

}  // namespace slackline
