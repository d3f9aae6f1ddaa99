#include "server/coordinator/inspections.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/shortened.h"

namespace slackline {
namespace {

void PutName(const Member& member, wire::MemberName* name) {
  name->set_worker(member.worker_role());
  name->set_index(member.index());
}

bool Names(const wire::MemberName& name, const Member& member) {
  return name.worker() == member.worker_role() &&
         name.index() == member.index();
}

}  // namespace

std::string Inspections::WhyUnfit(const wire::Inspect& inspect) {
  switch (inspect.what_case()) {
    case wire::Inspect::kStacks:
      break;
    case wire::Inspect::kTimeline:
      if (inspect.timeline().ms() >= 1 &&
          inspect.timeline().ms() <= kTimelineMsMax) {
        break;
      }
      return absl::StrCat("a timeline of ", inspect.timeline().ms(),
                          " ms; it takes 1 to ", kTimelineMsMax);
    default:
      return "neither stacks nor a timeline are asked for";
  }
  if (inspect.of_size() <= kNamesMax) return "";
  return absl::StrCat(inspect.of_size(), " names of members; it takes up to ",
                      kNamesMax, ", and without any it asks all");
}

uint64_t Inspections::NewNumber(absl::Time now) {
  // Members of the job may remember those of the coordinator before this one.
  last_number_ = std::max<uint64_t>(
      last_number_ + 1, static_cast<uint64_t>(absl::ToUnixMicros(now)));
  return last_number_;
}

void Inspections::OnInspect(const PeerId& from, const wire::Call& call,
                            bool forming, absl::Time now,
                            CoordinatorEffects* effects) {
  ForgetUnwanted(now);
  const wire::Inspect& inspect = call.inspect();
  if (inspect.number() == 0) return Begin(from, call, forming, now, effects);
  const auto open = open_.find(inspect.number());
  if (open == open_.end() || !open->second.of_user ||
      open->second.user != from) {
    effects->sends.push_back(
        AnswerTo(from, call.call_id(), wire::REJECTED,
                 absl::StrCat("inspection ", inspect.number(),
                              " is not known: nobody has asked for its next "
                              "part for longer than ",
                              absl::FormatDuration(kPatience),
                              ", or the coordinator is another one by now")));
    return;
  }
  GoOn(from, call, &open->second, now, effects);
}

void Inspections::Begin(const PeerId& from, const wire::Call& call,
                        bool forming, absl::Time now,
                        CoordinatorEffects* effects) {
  const wire::Inspect& inspect = call.inspect();
  const auto refuse = [&](wire::Code code, const std::string& why) {
    effects->sends.push_back(AnswerTo(from, call.call_id(), code, why));
  };
  size_t of_users = 0;
  const Open* timeline = nullptr;
  for (const auto& [number, open] : open_) {
    if (!open.of_user) continue;
    if (open.user == from && open.call_id == call.call_id()) {
      effects->sends.push_back(StateOf(from, call.call_id(), open, 0));
      return;
    }
    if (open.over()) continue;
    ++of_users;
    if (open.question.has_timeline()) timeline = &open;
  }
  if (const std::string why = WhyUnfit(inspect); !why.empty())
    return refuse(wire::REJECTED, why);
  if (inspect.has_timeline() && timeline != nullptr) {
    return refuse(
        wire::REJECTED,
        absl::StrCat("somebody else has asked for a timeline, of ",
                     absl::FormatDuration(absl::Milliseconds(
                         timeline->question.timeline().ms())),
                     "; there is one at a time: ask again when it is over"));
  }
  if (of_users >= kOpenMax) {
    return refuse(wire::BUSY,
                  absl::StrCat(of_users, " others ask what processes do"));
  }
  Open open = {.question = {},
               .of_user = true,
               .user = from,
               .call_id = call.call_id(),
               .asked_at = now,
               .of_all = inspect.of().empty(),
               .waits_for_start = inspect.has_timeline() && forming,
               .missing = {},
               .parts = {},
               .dropped = 0,
               .gone = {}};
  std::vector<bool> found(static_cast<size_t>(inspect.of_size()), false);
  for (const auto& [incarnation, member] : members_.all()) {
    bool wanted = open.of_all;
    for (int i = 0; i < inspect.of_size(); ++i) {
      if (!Names(inspect.of(i), member)) continue;
      wanted = true;
      found[static_cast<size_t>(i)] = true;
    }
    if (wanted) open.missing.insert(incarnation);
  }
  if (const auto none = std::find(found.begin(), found.end(), false);
      none != found.end()) {
    const wire::MemberName& name =
        inspect.of(static_cast<int>(none - found.begin()));
    return refuse(
        wire::REJECTED,
        absl::StrCat("there is no ", name.worker() ? "worker " : "server ",
                     name.index(), " in the job now"));
  }
  if (open.missing.empty())
    return refuse(wire::BUSY, "no member has joined the job yet");
  open.question.set_number(NewNumber(now));
  if (inspect.has_stacks()) {
    open.question.mutable_stacks();
  } else {
    *open.question.mutable_timeline() = inspect.timeline();
    SetShare(&open);
  }
  ForgetOld();
  effects->sends.push_back(StateOf(from, call.call_id(), open, 0));
  Tell(open, effects);
  open_[open.question.number()] = std::move(open);
}

void Inspections::SetShare(Open* open) {
  const auto members =
      static_cast<int64_t>(std::max<size_t>(open->missing.size(), 1));
  open->question.mutable_timeline()->set_bytes_max(
      std::clamp(kBytesMax / members, kPartBytesMin, kPartBytesMax));
}

void Inspections::ForgetOld() {
  size_t over = 0;
  for (const auto& [number, open] : open_) over += open.over() ? 1 : 0;
  for (auto open = open_.begin(); over > kOpenMax;) {
    if (!open->second.over()) {
      ++open;
      continue;
    }
    open = open_.erase(open);
    --over;
  }
}

void Inspections::GoOn(const PeerId& from, const wire::Call& call, Open* open,
                       absl::Time now, CoordinatorEffects* effects) {
  open->asked_at = now;
  const int32_t received = call.inspect().received();
  if (received < open->dropped ||
      received > open->dropped + static_cast<int32_t>(open->parts.size())) {
    effects->sends.push_back(
        AnswerTo(from, call.call_id(), wire::REJECTED,
                 absl::StrCat("part ", received, " of inspection ",
                              open->question.number(), " is not here")));
    return;
  }
  Drop(open, static_cast<size_t>(received - open->dropped));
  effects->sends.push_back(StateOf(from, call.call_id(), *open, received));
}

Outgoing Inspections::StateOf(const PeerId& to, uint64_t call_id,
                              const Open& open, int32_t received) const {
  Outgoing out = AnswerTo(to, call_id, wire::OK);
  wire::InspectionState& state =
      *out.message.header.mutable_call_reply()->mutable_inspection();
  state.set_number(open.question.number());
  const auto next = static_cast<size_t>(received - open.dropped);
  if (next < open.parts.size()) {
    const Part& part = open.parts[next];
    *state.mutable_part() = part.inspected;
    if (part.inspected.has_timeline())
      out.message.payloads.push_back(part.frame);
  }
  for (const Incarnation incarnation : open.missing) {
    const Member* const member = members_.Find(incarnation);
    if (member != nullptr) PutName(*member, state.add_missing());
  }
  for (const std::string& sentence : open.gone) state.add_gone(sentence);
  return out;
}

void Inspections::Tell(const Open& open, CoordinatorEffects* effects) const {
  if (open.waits_for_start) return;
  for (const Incarnation incarnation : open.missing) {
    const Member* const member = members_.Find(incarnation);
    if (member == nullptr) continue;
    Outgoing out = HeartbeatReplyTo(*member);
    *out.message.header.mutable_heartbeat_reply()->add_inspection() =
        open.question;
    effects->sends.push_back(std::move(out));
  }
}

void Inspections::OnRunning(const Moment&, CoordinatorEffects* effects) {
  for (auto& [number, open] : open_) {
    if (!std::exchange(open.waits_for_start, false)) continue;
    SetShare(&open);
    Tell(open, effects);
  }
}

void Inspections::PutQuestions(const Member& member,
                               wire::HeartbeatReply* reply) const {
  for (const auto& [number, open] : open_) {
    if (open.waits_for_start || open.missing.count(member.incarnation) == 0)
      continue;
    *reply->add_inspection() = open.question;
  }
}

void Inspections::OnJoined(const Member& member, CoordinatorEffects*) {
  for (auto& [number, open] : open_) {
    if (open.of_all && open.waits_for_start)
      open.missing.insert(member.incarnation);
  }
}

void Inspections::OnGone(const GoneMember& gone, CoordinatorEffects*) {
  const Incarnation incarnation = gone.member.incarnation;
  asked_at_.erase(incarnation);
  for (auto& [number, open] : open_) {
    const bool was_asked = open.missing.erase(incarnation) > 0;
    // Another one may come in its place before the job runs.
    if (was_asked && open.of_user && !open.waits_for_start)
      open.gone.push_back(gone.sentence);
  }
}

const wire::Stacks* Inspections::OnInspected(const Member& member,
                                             const Message& message,
                                             double seconds, absl::Time now,
                                             CoordinatorEffects* effects) {
  const wire::Call& call = message.header.call();
  effects->sends.push_back(AnswerTo(member.peer, call.call_id(), wire::OK));
  const auto found = open_.find(call.inspected().number());
  if (found == open_.end()) return nullptr;
  Open& open = found->second;
  if (open.missing.erase(member.incarnation) == 0) return nullptr;
  Part part;
  wire::Inspected& said = part.inspected;
  said.set_number(open.question.number());
  PutName(member, said.mutable_of());
  said.set_host(member.join.host());
  said.set_pid(member.join.pid());
  const wire::Inspected& given = call.inspected();
  if (open.question.has_stacks() && given.has_stacks()) {
    said.mutable_stacks()->set_where(
        slackline::Shortened(given.stacks().where(), kWhereBytesMax));
    said.mutable_stacks()->set_text(
        slackline::Shortened(given.stacks().text(), kTextBytesMax));
  } else if (open.question.has_timeline() && given.has_timeline() &&
             message.payloads.size() == 1 &&
             static_cast<int64_t>(message.payloads.front().size()) <=
                 open.question.timeline().bytes_max()) {
    said.mutable_timeline()->set_offset_micros(
        given.timeline().offset_micros());
    said.mutable_timeline()->set_offset_bound_micros(
        given.timeline().offset_bound_micros());
    part.frame = message.payloads.front();
  } else {
    said.set_error(given.has_error()
                       ? slackline::Shortened(given.error(), kTextBytesMax)
                       : "its answer does not fit the question");
  }
  if (!open.of_user) {
    open_.erase(found);
    return said.has_stacks() ? KeepStacks(member, said.stacks(), seconds)
                             : nullptr;
  }
  if (bytes_ + part.bytes() > kBytesMax) {
    part.frame = Payload();
    said.set_error(absl::StrCat(
        "it has answered, but ", bytes_ >> 20,
        " MiB of answers wait for users already: ask fewer members"));
  }
  bytes_ += part.bytes();
  open.parts.push_back(std::move(part));
  ForgetUnwanted(now);
  return nullptr;
}

void Inspections::Drop(Open* open, size_t parts) {
  for (size_t i = 0; i < parts; ++i) {
    bytes_ -= open->parts.front().bytes();
    open->parts.pop_front();
    ++open->dropped;
  }
}

WakeUp Inspections::NextWakeUp() const {
  WakeUp next;
  for (const auto& [number, open] : open_)
    next.at = std::min(next.at, open.asked_at + kPatience);
  return next;
}

void Inspections::ForgetUnwanted(absl::Time now) {
  for (auto open = open_.begin(); open != open_.end();) {
    if (now - open->second.asked_at <= kPatience) {
      ++open;
      continue;
    }
    Drop(&open->second, open->second.parts.size());
    open = open_.erase(open);
  }
}

void Inspections::AskFor(const std::vector<Incarnation>& culprits,
                         absl::Time now, CoordinatorEffects* effects) {
  size_t asked_now = 0;
  for (const Incarnation culprit : culprits) {
    if (members_.Find(culprit) == nullptr) continue;
    const auto asked = asked_at_.find(culprit);
    if (asked != asked_at_.end() && now - asked->second < kAgain) continue;
    if (++asked_now > kKeptMax) break;
    asked_at_[culprit] = now;
    Open open = {.question = {},
                 .of_user = false,
                 .user = {},
                 .call_id = 0,
                 .asked_at = now,
                 .of_all = false,
                 .waits_for_start = false,
                 .missing = {culprit},
                 .parts = {},
                 .dropped = 0,
                 .gone = {}};
    open.question.set_number(NewNumber(now));
    open.question.mutable_stacks();
    Tell(open, effects);
    open_[open.question.number()] = std::move(open);
  }
  // Who stands still no more is asked anew when it does again.
  for (auto asked = asked_at_.begin(); asked != asked_at_.end();) {
    const bool still = absl::c_linear_search(culprits, asked->first) ||
                       now - asked->second < kAgain;
    asked = still ? std::next(asked) : asked_at_.erase(asked);
  }
}

const wire::Stacks* Inspections::KeepStacks(const Member& member,
                                            const wire::Stacks& stacks,
                                            double seconds) {
  const auto before = absl::c_find_if(
      kept_, [&](const auto& kept) { return Names(kept.second.of(), member); });
  if (before != kept_.end()) kept_.erase(before);
  if (kept_.size() == kKeptMax) kept_.pop_front();
  wire::MemberStacks kept;
  PutName(member, kept.mutable_of());
  kept.set_seconds(seconds);
  kept.mutable_stacks()->set_where(stacks.where());
  kept.mutable_stacks()->set_text(
      slackline::Shortened(stacks.text(), kKeptTextBytesMax));
  kept_.emplace_back(member.incarnation, std::move(kept));
  return &kept_.back().second.stacks();
}

void Inspections::PutStatus(const StatusQuestion&,
                            wire::StatusReply* status) const {
  for (const auto& [incarnation, kept] : kept_) *status->add_stacks() = kept;
}

void Inspections::PutSummary(run::Summary* summary) const {
  for (const auto& [incarnation, kept] : kept_) {
    if (!kept.of().worker()) continue;
    run::StoodStill& stood_still = *summary->add_stood_still();
    stood_still.set_rank(kept.of().index());
    stood_still.set_seconds(kept.seconds());
    stood_still.set_where(kept.stacks().where());
    stood_still.set_text(kept.stacks().text());
  }
}

bool Inspections::WaitsFor(Incarnation incarnation) const {
  return absl::c_any_of(open_, [&](const auto& entry) {
    const Open& open = entry.second;
    return open.of_user && open.missing.count(incarnation) > 0;
  });
}

bool Inspections::waited_for() const {
  return absl::c_any_of(open_, [](const auto& entry) {
    const Open& open = entry.second;
    return open.of_user && !open.over();
  });
}

}  // namespace slackline
