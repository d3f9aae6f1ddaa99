#include "tools/cli/doctor/examination.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "tools/cli/doctor/diagnosis.h"
#include "tools/cli/doctor/doors.h"
#include "tools/cli/doctor/replies.h"
#include "tools/cli/doctor/report_text.h"

namespace slackline {
namespace {

constexpr absl::Duration kQuestionMax = absl::Seconds(20);
// Where programs may be asked for their versions: LibTorch is loaded.
constexpr absl::Duration kQuickLookMax = absl::Minutes(1);
// Of one round; a host has more doors than one, and may not answer at any.
constexpr absl::Duration kRoundMax = absl::Minutes(1);
// Of all rounds: a large job is not held up for long.
constexpr absl::Duration kRoundsMax = absl::Minutes(1);

}  // namespace

bool IsInterruption(const absl::Status& status) {
  return absl::IsAborted(status) || absl::IsCancelled(status);
}

Examination::Examination(doctor::Job job, AskHosts ask) : ask_(std::move(ask)) {
  *facts_.mutable_job() = std::move(job);
  for (const doctor::HostNeed& need : facts_.job().host())
    facts_.add_host()->set_name(need.name());
}

doctor::Host* Examination::HostOf(const std::string& name) {
  for (doctor::Host& host : *facts_.mutable_host()) {
    if (host.name() == name) return &host;
  }
  SL_CHECK(false, "a host of the job");
  return nullptr;
}

const doctor::HostNeed* Examination::NeedOf(const std::string& name) const {
  for (const doctor::HostNeed& need : job().host()) {
    if (need.name() == name) return &need;
  }
  return nullptr;
}

std::vector<std::string> Examination::Reached() const {
  std::vector<std::string> reached;
  for (const doctor::Host& host : facts_.host()) {
    if (host.unreached().empty()) reached.push_back(host.name());
  }
  return reached;
}

absl::Status Examination::ForEachReply(
    const std::vector<std::string>& hosts,
    std::vector<absl::StatusOr<doctor::Reply>> replies,
    const std::function<void(size_t, doctor::Reply)>& take) {
  for (size_t i = 0; i < replies.size(); ++i) {
    absl::Status fit = replies[i].status();
    if (IsInterruption(fit)) return fit;
    if (fit.ok()) fit = CheckReply(*replies[i]);
    if (fit.ok()) {
      take(i, *std::move(replies[i]));
    } else {
      SetUnreached(hosts[i], std::string(fit.message()));
    }
  }
  return absl::OkStatus();
}

absl::Status Examination::AskAll(
    absl::Duration wait_max,
    const std::function<doctor::Question(const doctor::HostNeed&)>& question) {
  const std::vector<std::string> reached = Reached();
  std::vector<HostQuestion> questions;
  for (const std::string& host : reached)
    questions.push_back({.host = host, .question = question(*NeedOf(host))});
  const TimeSource time;
  const absl::Time asked = time.WallNow();
  std::vector<absl::StatusOr<doctor::Reply>> replies =
      ask_(std::move(questions), wait_max);
  const absl::Duration took = time.WallNow() - asked;
  return ForEachReply(
      reached, std::move(replies), [&](size_t i, doctor::Reply reply) {
        doctor::Host& host = *HostOf(reached[i]);
        // The host has looked at its clock at some time in between; the
        // quickest answers tell it best.
        const int64_t error = absl::ToInt64Microseconds(took / 2) + 1;
        if (host.clock_error_us() == 0 || error < host.clock_error_us()) {
          host.set_clock_error_us(error);
          host.set_clock_ahead_us(absl::ToInt64Microseconds(
              absl::FromUnixNanos(reply.wall_ns()) - (asked + took / 2)));
        }
        AddReply(std::move(reply), &host);
      });
}

absl::Status Examination::OpenDoors() {
  return AskAll(kQuestionMax, [](const doctor::HostNeed& need) {
    doctor::Question question;
    *question.mutable_open()->mutable_door() = need.door();
    return question;
  });
}

absl::Status Examination::CloseDoors() {
  std::vector<HostQuestion> questions;
  for (const std::string& host : Reached()) {
    questions.push_back({.host = host, .question = {}});
    questions.back().question.mutable_open();
  }
  for (const absl::StatusOr<doctor::Reply>& reply :
       ask_(std::move(questions), kQuestionMax)) {
    if (IsInterruption(reply.status())) return reply.status();
  }
  return absl::OkStatus();
}

doctor::Try Examination::TargetsAt(const std::string& from,
                                   const doctor::Host& to,
                                   bool transfer) const {
  const doctor::HostNeed* const source = NeedOf(from);
  const doctor::HostNeed& need = *NeedOf(to.name());
  const bool from_worker = source != nullptr && source->workers() > 0;
  const bool to_servers =
      source != nullptr &&
      (from_worker || from == to.name() || job().servers_need_each_other());
  doctor::Try targets;
  for (int i = 0; i < std::min(need.door_size(), to.opened().door_size());
       ++i) {
    const doctor::Door& door = need.door(i);
    const doctor::Opened::State& state = to.opened().door(i);
    const bool needed = door.coordinator() || (door.servers() && to_servers) ||
                        (door.workers() && from_worker);
    // Of a host behind a NAT its own processes need not come through that.
    const bool by_name = door.coordinator() || !door.listen().empty();
    const bool own =
        from == to.name() && !door.listen().empty() && !door.coordinator();
    if (!state.error().empty() || !needed || own) continue;
    doctor::Try::Target& target = *targets.add_target();
    target.set_host(by_name ? door.host() : state.address());
    target.set_port(state.port());
    target.set_label(door.label());
    target.set_transfer(transfer && targets.target_size() == 1);
  }
  return targets;
}

void Examination::TryFromHere(bool transfer) {
  if (facts_.host().empty()) return;
  const doctor::Host& first = facts_.host(0);
  doctor::Pair& pair = *facts_.add_pair();
  pair.set_to(first.name());
  *pair.mutable_connection() =
      std::move(*TryDoors(TargetsAt("", first, transfer)).mutable_connection());
}

absl::Status Examination::MeasurePairs(bool from_here) {
  const TimeSource time;
  const absl::Time end = time.Now() + kRoundsMax;
  if (from_here) TryFromHere(/*transfer=*/true);
  const size_t rounds = Reached().size();
  for (size_t round = 0; round < rounds; ++round) {
    const std::vector<std::string> reached = Reached();
    std::vector<HostQuestion> questions;
    std::vector<doctor::Pair> pairs;
    for (size_t i = 0; i < reached.size(); ++i) {
      doctor::Pair& pair = pairs.emplace_back();
      pair.set_from(reached[i]);
      pair.set_to(reached[(i + round) % reached.size()]);
      questions.push_back({.host = reached[i], .question = {}});
      *questions.back().question.mutable_try_() =
          TargetsAt(pair.from(), *HostOf(pair.to()), /*transfer=*/round > 0);
    }
    if (time.Now() > end) {
      for (doctor::Pair& pair : pairs) {
        pair.set_error("it was not tried, since the others took too long");
        *facts_.add_pair() = std::move(pair);
      }
      continue;
    }
    SL_RETURN_IF_ERROR(ForEachReply(
        reached, ask_(std::move(questions), kRoundMax),
        [&](size_t i, doctor::Reply reply) {
          *pairs[i].mutable_connection() =
              std::move(*reply.mutable_tried()->mutable_connection());
          *facts_.add_pair() = std::move(pairs[i]);
        }));
  }
  return absl::OkStatus();
}

absl::Status Examination::TryPairs(bool from_here) {
  const std::vector<std::string> reached = Reached();
  std::vector<HostQuestion> questions;
  std::vector<std::vector<doctor::Pair>> pairs;
  for (const std::string& from : reached) {
    questions.push_back({.host = from, .question = {}});
    pairs.emplace_back();
    for (const std::string& to : reached) {
      const doctor::Try targets =
          TargetsAt(from, *HostOf(to), /*transfer=*/false);
      doctor::Pair& pair = pairs.back().emplace_back();
      pair.set_from(from);
      pair.set_to(to);
      for (const doctor::Try::Target& target : targets.target()) {
        *questions.back().question.mutable_try_()->add_target() = target;
        pair.add_connection();
      }
      questions.back().question.mutable_try_();
    }
  }
  if (from_here) TryFromHere(/*transfer=*/false);
  return ForEachReply(
      reached, ask_(std::move(questions), kRoundMax),
      [&](size_t i, const doctor::Reply& reply) {
        int next = 0;
        for (doctor::Pair& pair : pairs[i]) {
          for (doctor::Connection& connection : *pair.mutable_connection()) {
            if (next == reply.tried().connection_size()) break;
            connection = reply.tried().connection(next++);
          }
          *facts_.add_pair() = std::move(pair);
        }
      });
}

namespace {

// OK: the report is in `*report`.
absl::Status LookQuickly(const doctor::Job& job, bool from_here,
                         const AskHosts& ask, doctor::Report* report) {
  Examination examination(job, ask);
  SL_RETURN_IF_ERROR(
      examination.AskAll(kQuickLookMax, [&](const doctor::HostNeed& need) {
        // Others might take the resolver's time, and are not needed.
        std::set<std::string> names(job.by_name().begin(), job.by_name().end());
        names.insert(need.name());
        doctor::Question question;
        doctor::Look& look = *question.mutable_look();
        look.mutable_name()->Assign(names.begin(), names.end());
        *look.mutable_program() = need.program();
        look.set_versions_from_files(true);
        *look.mutable_environment() = job.environment();
        return question;
      }));
  for (doctor::Host& host : *examination.facts().mutable_host()) {
    // These were looked at before: slackline there is the agent.
    host.mutable_facts()->set_memory_bytes(0);
    host.mutable_facts()->set_version(job.version());
  }
  SL_RETURN_IF_ERROR(examination.OpenDoors());
  SL_RETURN_IF_ERROR(examination.TryPairs(from_here));
  SL_RETURN_IF_ERROR(examination.CloseDoors());
  *report = Diagnose(examination.facts());
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckHosts(doctor::Job job, bool from_here, const AskHosts& ask) {
  const bool is_here = job.engine() == "here";
  for (doctor::HostNeed& need : *job.mutable_host()) {
    need.set_gpus(0);
    need.set_data(false);
    need.set_own_programs(false);
    // Those here are of one build with this one.
    if (is_here) need.clear_program();
  }
  job.set_shares_checkpoints(false);
  job.set_shares_run_folder(false);
  doctor::Report report;
  SL_RETURN_IF_ERROR(LookQuickly(job, from_here, ask, &report));
  // A machine that stood still for a moment is not refused.
  if (report.errors() > 0)
    SL_RETURN_IF_ERROR(LookQuickly(job, from_here, ask, &report));
  std::vector<std::string> lines;
  for (const doctor::Finding& finding : report.finding()) {
    if (finding.level() == doctor::ERROR) lines.push_back(FindingLine(finding));
  }
  if (lines.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the job would not start:\n", absl::StrJoin(lines, "\n"),
                   "\n`slackline doctor`, with the same flags, looks closer"));
}

}  // namespace slackline
