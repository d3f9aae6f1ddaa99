#include "server/shard/request_desk.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/sync/phases.h"
#include "server/shard/feed_sender.h"
#include "server/shard/refusals.h"
#include "server/shard/request_faults.h"
#include "server/shard/shard_calls.h"
#include "server/shard/shard_peers.h"
#include "server/shard/thread_cut.h"

namespace slackline {
namespace {

// What followers have to have before a worker is told this.
std::vector<HeldAnswers::Need> NeedsOf(const wire::Header& header,
                                       const ShardPlaces& places) {
  std::vector<HeldAnswers::Need> needs;
  // Whatever is followed is confirmed, or nothing is.
  if (places.AllConfirmed()) return needs;
  const auto about = [&](int32_t shard) {
    const ShardId id{shard};
    const ShardFeeds* const feeds = places.Feeds(id);
    if (feeds == nullptr || feeds->followers().HaveAll()) return;
    needs.push_back(
        {.shard = id, .index = places.Served(id)->machine().position().index});
  };
  for (const wire::PushAnswer& answer : header.push_reply().answer())
    about(answer.shard());
  for (const wire::ProbeAnswer& answer : header.probe_reply().answer())
    about(answer.shard());
  for (const wire::PullAnswer& answer : header.pull_reply().answer()) {
    if (answer.has_values() || answer.has_state()) about(answer.shard());
  }
  return needs;
}

// What the pull asks of each of its shards.
std::shared_ptr<const wire::Pull> WithoutShards(const wire::Pull& pull) {
  auto asked = std::make_shared<wire::Pull>(pull);
  asked->clear_shard();
  return asked;
}

// Where the shard is, if that is known.
std::optional<wire::Relocation> RelocationOf(ShardId shard,
                                             const ShardParts& at) {
  Owner owner = at.view->OwnerOf(shard);
  uint64_t as_of = at.view->number();
  if (const ShardPlaces::Gone* const gone = at.places.FindGone(shard)) {
    if (gone->lost) return std::nullopt;
    owner = gone->feed.target();
    as_of = gone->move;
  } else if (const wire::Move* const move = at.view->FindMove(shard)) {
    as_of = move->id() - 1;
  }
  if (owner == at.options.self) return std::nullopt;
  wire::Relocation relocation;
  relocation.set_server(owner.server);
  relocation.set_thread(owner.thread);
  relocation.set_as_of(as_of);
  return relocation;
}

// Workers are about to replace what a shard with this clock has, and some of
// them may not take part yet.
bool AwaitsInstall(const wire::View& view, Clock clock) {
  if (!WorkersHaveModel(StepAt(view, clock))) return false;
  const wire::Phase* const next = PhaseAfter(view, clock);
  return next != nullptr && view.arrived() >= next->from();
}

}  // namespace

void RequestDesk::OnPush(const PeerId& from, const Message& message,
                         const ShardParts& at) {
  const wire::PushRequest& request = message.header.push_request();
  const std::string fault = FaultOf(request, message.payloads.size());
  if (!fault.empty())
    return Refuse(from, absl::StrCat("malformed push: ", fault), at);
  Outgoing out{.to = from, .message = {}};
  wire::PushReply& reply = *out.message.header.mutable_push_reply();
  reply.set_request_id(request.request_id());
  const Sender sender =
      SenderOf(from, message.header,
               {.phases = request.phases(), .cuts = request.cuts()}, at);
  absl::Span<const Payload> left = message.payloads;
  bool rejected = false;
  for (const wire::Push& push : request.push()) {
    const absl::Span<const Payload> frames = left.first(FramesOf(push));
    left.remove_prefix(frames.size());
    Admission admission = Admit(sender, push.shard(), at);
    const auto add = [&](wire::Header* header) {
      wire::PushRequest& later = *header->mutable_push_request();
      later.set_request_id(request.request_id());
      later.set_phases(request.phases());
      later.set_cuts(request.cuts());
      *later.add_push() = push;
    };
    if (admission.may_wait &&
        Wait(push.shard(), from, message.header, push, frames, at, add)) {
      continue;
    }
    ServedShard::Pushed pushed;
    if (admission.served == nullptr) {
      pushed.refusal = std::move(admission.refusal);
    } else {
      pushed = Push(sender, push, frames, at);
    }
    std::optional<wire::Refusal>& refusal = pushed.refusal;
    rejected |= refusal.has_value() && refusal->has_rejected();
    // Neighbours for one shard share an answer: acceptance is cumulative.
    const int answers = reply.answer_size();
    wire::PushAnswer& answer =
        answers > 0 && reply.answer(answers - 1).shard() == push.shard()
            ? *reply.mutable_answer(answers - 1)
            : *reply.add_answer();
    answer.set_shard(push.shard());
    answer.set_accepted_seq(
        std::max(answer.accepted_seq(), pushed.accepted_seq));
    if (refusal.has_value() && !answer.has_refusal())
      *answer.mutable_refusal() = *std::move(refusal);
  }
  if (reply.answer_size() == 0) return;  // All of it waits.
  if (rejected) at.counts.Count(run::ServerStats::kMalformedFieldNumber);
  Send(std::move(out), at);
}

void RequestDesk::OnPull(const PeerId& from, const Message& message,
                         const ShardParts& at) {
  const wire::PullRequest& request = message.header.pull_request();
  const std::string fault = FaultOf(request, message.payloads.size());
  if (!fault.empty())
    return Refuse(from, absl::StrCat("malformed pull: ", fault), at);
  const Sender sender =
      SenderOf(from, message.header,
               {.phases = request.phases(), .cuts = request.cuts()}, at);
  for (const wire::Pull& pull : request.pull()) {
    const std::shared_ptr<const wire::Pull> asked = WithoutShards(pull);
    for (const int32_t shard : pull.shard()) {
      Admission admission = Admit(sender, shard, at);
      const auto add = [&](wire::Header* header) {
        wire::PullRequest& later = *header->mutable_pull_request();
        later.set_phases(request.phases());
        later.set_cuts(request.cuts());
        wire::Pull& part = *later.add_pull();
        part = *asked;
        part.add_shard(shard);
      };
      if (admission.may_wait &&
          Wait(shard, from, message.header, *asked, {}, at, add)) {
        continue;
      }
      std::optional<wire::Refusal> refusal =
          admission.served == nullptr
              ? std::move(admission.refusal)
              : Pull(*admission.served, sender, asked, at);
      if (!refusal.has_value()) continue;
      if (refusal->has_rejected())
        at.counts.Count(run::ServerStats::kMalformedFieldNumber);
      *at.replies.Add(from, pull.id(), ShardId{shard}).mutable_refusal() =
          *std::move(refusal);
    }
  }
}

void RequestDesk::OnProbe(const PeerId& from, const Message& message,
                          const ShardParts& at) {
  const wire::ProbeRequest& probe = message.header.probe_request();
  const std::string fault = FaultOf(probe, message.payloads.size());
  if (!fault.empty())
    return Refuse(from, absl::StrCat("malformed probe: ", fault), at);
  // Whoever has this reply has every answer that was sent before it.
  Flush(at);
  Outgoing out{.to = from, .message = {}};
  wire::ProbeReply& reply = *out.message.header.mutable_probe_reply();
  reply.set_request_id(probe.request_id());
  const Sender sender = SenderOf(from, message.header, Known(), at);
  for (const int32_t shard : probe.shard()) {
    Admission admission = Admit(sender, shard, at);
    wire::ProbeAnswer& answer = *reply.add_answer();
    answer.set_shard(shard);
    if (admission.served == nullptr) {
      *answer.mutable_refusal() = *std::move(admission.refusal);
      continue;
    }
    const Participant* const participant = admission.served->Find(sender.who);
    answer.set_accepted_seq(participant == nullptr ? 0
                                                   : participant->next_seq - 1);
  }
  Send(std::move(out), at);
}

void RequestDesk::Refuse(const PeerId& from, const std::string& error,
                         const ShardParts& at) {
  at.counts.Count(run::ServerStats::kMalformedFieldNumber);
  // Two threads that refuse each other's refusals would never end.
  if (from.kind == PeerId::Kind::kShardThread) return;
  Outgoing reply{.to = from, .message = {}};
  at.Sign(&reply.message.header);
  reply.message.header.mutable_error_reply()->set_error(error);
  at.effects.sends.push_back(std::move(reply));
}

void RequestDesk::Send(Outgoing out, const ShardParts& at) {
  // It may say what a shard that has failed has not done.
  if (at.failed) return;
  at.Sign(&out.message.header);
  std::vector<HeldAnswers::Need> needs = NeedsOf(out.message.header, at.places);
  if (needs.empty() && !held_.Holds(out.to)) {
    at.effects.sends.push_back(std::move(out));
  } else {
    held_.Add(std::move(out), std::move(needs));
  }
}

RequestDesk::Sender RequestDesk::SenderOf(const PeerId& from,
                                          const wire::Header& header,
                                          Known known, const ShardParts& at) {
  const bool running =
      at.view != nullptr && at.view->proto().state() == wire::RUNNING;
  Sender sender{.peer = from,
                .who = {Rank{from.index}, from.instance},
                .view_number = header.view_number(),
                .known = known};
  sender.member =
      running && from.kind == PeerId::Kind::kWorker &&
      at.view->FindWorker(sender.who.rank, sender.who.incarnation) != nullptr;
  // Only a view of a running job says who is no member any more. Who has not
  // heard of the end of the job, which we have, hears it from the coordinator.
  sender.fenced =
      !sender.member && running && sender.view_number <= at.view->number();
  return sender;
}

RequestDesk::Admission RequestDesk::Admit(const Sender& sender, int32_t shard,
                                          const ShardParts& at) {
  if (sender.fenced) return {.refusal = Fenced()};
  // A phase that we have not seen may have begun, or a gradient be after a cut
  // that we have not seen.
  if (!sender.member || sender.known.phases > at.view->proto().phase_size() ||
      sender.known.cuts > at.view->proto().cut().number()) {
    return {.refusal = Retry()};
  }
  const ShardId id{shard};
  const ShardPlaces::Leaving* const leaving = at.places.FindLeaving(id);
  const bool owner_unclear =
      leaving != nullptr
          ? leaving->served.feeds.MustWait(leaving->target, at.now)
          : at.places.IsArriving(id);
  if (owner_unclear) return {.may_wait = true, .refusal = Retry()};
  if (!at.view->HasShard(shard)) {
    if (sender.view_number > at.view->number()) return {.refusal = Retry()};
    return {.refusal = Rejected(
                absl::StrCat("there is no shard ", shard, ": the job has ",
                             at.view->shard_count(), " shards"))};
  }
  // It was split in two since: the sender means another range.
  if (sender.view_number < at.view->RangeSince(id))
    return {.refusal = Moved(std::nullopt)};
  if (ServedShard* const served = at.places.Served(id))
    return {.served = served, .refusal = {}};
  return {.refusal = Moved(RelocationOf(id, at))};
}

bool RequestDesk::Wait(int32_t shard, const PeerId& from,
                       const wire::Header& header,
                       const google::protobuf::MessageLite& entry,
                       absl::Span<const Payload> payloads, const ShardParts& at,
                       absl::FunctionRef<void(wire::Header*)> add) {
  const ShardId id{shard};
  const ShardPlaces::Waiting& waiting = *at.places.WaitingFor(id);
  size_t bytes = entry.ByteSizeLong();
  for (const Payload& payload : payloads) bytes += payload.size();
  if (waiting.requests.size() >= at.options.waiting_max ||
      waiting.bytes + bytes > at.options.waiting_bytes_max ||
      at.places.waiting_bytes() + bytes > at.options.waiting_bytes_max_all) {
    return false;
  }
  Outgoing request{.to = from, .message = {}};
  request.message.header.set_view_number(header.view_number());
  request.message.header.set_run(header.run());
  request.message.payloads.assign(payloads.begin(), payloads.end());
  add(&request.message.header);
  at.places.Wait(id, std::move(request), bytes);
  return true;
}

ServedShard::Pushed RequestDesk::Push(const Sender& sender,
                                      const wire::Push& push,
                                      absl::Span<const Payload> frames,
                                      const ShardParts& at) {
  const wire::View& view = at.view->proto();
  const WorkerLife& who = sender.who;
  const Clock clock = push.clock();
  const bool may_be_split = sender.view_number > at.view->number();
  ServedShard::Pushed pushed;
  const auto act = [&](ServedShard& shard, const ServedShard::Call& call) {
    if (!push.has_installation()) {
      pushed = shard.Push(
          who, push, frames.empty() ? Payload() : frames.front(),
          {.mode = PhaseAt(view, clock).mode(), .may_be_split = may_be_split},
          call);
      return;
    }
    ServedShard::InstallTerms terms{
        .ends_all_reduce = clock > 0 && PhaseAt(view, clock).from() == clock &&
                           WorkersHaveModel(StepAt(view, clock - 1)),
        .members = {},
        .may_be_split = may_be_split};
    for (const wire::WorkerMember& worker : at.view->workers())
      terms.members.push_back({Rank{worker.rank()}, worker.incarnation()});
    pushed = shard.Install(who, push, frames, terms, call);
  };
  CallShard(ShardId{push.shard()}, at, act);
  return pushed;
}

std::optional<wire::Refusal> RequestDesk::Pull(
    const ServedShard& served, const Sender& sender,
    const std::shared_ptr<const wire::Pull>& asked, const ShardParts& at) {
  const wire::View& view = at.view->proto();
  const WorkerLife& who = sender.who;
  // Who has joined while the others stepped by all-reduce takes part from the
  // installation on; our view may be too old to say so.
  if (served.Find(who) == nullptr &&
      (AwaitsInstall(view, served.machine().complete_clock()) ||
       sender.view_number > at.view->number())) {
    return Retry();
  }
  const Clock clock = asked->step().clock();
  const sync::Mode& mode = PhaseAt(view, clock).mode();
  ServedShard::PullTerms terms{.needs = NeedsAt(view, clock),
                               .extra_steps = RuleOf(mode).extra_steps(mode)};
  if (terms.extra_steps > 0)
    terms.granted_of_all = NeedsAt(view, clock, /*granted=*/true).of_all;
  std::optional<wire::Refusal> refusal;
  CallShard(served.range().shard, at,
            [&](ServedShard& shard, const ServedShard::Call& call) {
              refusal = shard.Pull(who, asked, terms, call);
            });
  return refusal;
}

void RequestDesk::Handle(const ShardPlaces::Requests& requests,
                         const ShardParts& at) {
  for (const Outgoing& request : requests) {
    if (at.failed) return;
    if (request.message.header.has_push_request()) {
      OnPush(request.to, request.message, at);
    } else {
      OnPull(request.to, request.message, at);
    }
  }
}

void RequestDesk::TurnAway(ShardId shard, absl::Span<const GatedPull> parked,
                           const ShardParts& at) {
  for (const GatedPull& pull : parked) {
    *at.replies.Add(PeerOf(pull), pull.request_id, shard).mutable_refusal() =
        Moved(RelocationOf(shard, at));
  }
}

void RequestDesk::Close(ShardId shard, absl::string_view why,
                        absl::FunctionRef<void(ShardPlaces::Left*)> event,
                        const ShardParts& at) {
  if (at.places.Served(shard)->cut() != nullptr)
    at.cut.Fail(shard, absl::FailedPreconditionError(why), at);
  ShardPlaces::Left left;
  event(&left);
  TurnAway(shard, left.parked, at);
  Handle(left.requests, at);
}

void RequestDesk::Flush(const ShardParts& at) {
  for (Outgoing& reply : at.replies.Take()) Send(std::move(reply), at);
  at.feeds.PumpAll(at);
  if (!std::exchange(confirmed_, false)) return;
  held_.Release(
      [&](const HeldAnswers::Need& need) {
        // A shard that has moved on had all of it confirmed before.
        const ShardFeeds* const feeds = at.places.Feeds(need.shard);
        return feeds == nullptr || feeds->followers().Have(need.index);
      },
      &at.effects.sends);
}

}  // namespace slackline
