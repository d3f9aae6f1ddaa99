#include "tests/sim/sim_network.h"

#include <algorithm>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"

namespace slackline::sim {

void SimNetwork::Attach(const PeerId& self, Node node, Receive receive) {
  endpoints_[self] = {
      .node = node, .receive = std::move(receive), .reached = nullptr};
  nodes_[self] = node;
}

void SimNetwork::OnReached(const PeerId& self,
                           std::function<void(const PeerId& from)> reached) {
  endpoints_.at(self).reached = std::move(reached);
}

void SimNetwork::WatchPeer(const PeerId& self, const PeerId& peer,
                           std::function<void(bool is_up)> tell) {
  std::erase_if(links_,
                [&](const auto& entry) { return entry.first.first == self; });
  const uint64_t id = ++links_made_;
  links_[{self, peer}] = {.id = id, .tell = std::move(tell), .up = {}};
  LookAfter(self, peer, id, queue_->now() + Delay());
}

void SimNetwork::LookAfter(const PeerId& self, const PeerId& peer, uint64_t id,
                           absl::Time at) {
  queue_->At(at, [this, self, peer, id] { Look(self, peer, id); });
}

void SimNetwork::Look(const PeerId& self, const PeerId& peer, uint64_t id) {
  constexpr absl::Duration kConnectEvery = absl::Milliseconds(50);
  const auto watcher = endpoints_.find(self);
  const auto link = links_.find({self, peer});
  if (watcher == endpoints_.end() || link == links_.end() ||
      link->second.id != id) {
    return;
  }
  const absl::Time now = queue_->now();
  const Node here = watcher->second.node;
  const auto there = nodes_.find(peer);
  if (there != nodes_.end()) {
    const absl::Time cut =
        std::max(CutUntil(here, there->second), CutUntil(there->second, here));
    if (cut > now) return LookAfter(self, peer, id, cut + Delay());
  }
  const bool up = endpoints_.count(peer) > 0;
  if (up != link->second.up) {
    link->second.up = up;
    ++(up ? stats_.told_up : stats_.told_gone);
    (*machines_)[here].Arrive([this, self, peer, id, up] {
      const auto told = links_.find({self, peer});
      if (told != links_.end() && told->second.id == id &&
          endpoints_.count(self) > 0) {
        told->second.tell(up);
      }
    });
  }
  // Connects anew now and then; a reset comes by itself.
  if (!up) LookAfter(self, peer, id, now + kConnectEvery);
}

void SimNetwork::Detach(const PeerId& self, bool drop_sent) {
  endpoints_.erase(self);
  if (drop_sent) silenced_.insert(self);
  if (links_.empty()) return;
  std::erase_if(links_,
                [&](const auto& entry) { return entry.first.first == self; });
  for (const auto& [ends, link] : links_) {
    if (ends.second == self)
      LookAfter(ends.first, self, link.id, queue_->now() + Delay());
  }
}

void SimNetwork::Cut(Node from, Node to, absl::Time until, bool held) {
  CutLink& cut = cuts_[{from, to}];
  if (until > cut.until) cut = {.until = until, .held = held};
}

void SimNetwork::CutPeers(const PeerId& from, const PeerId& to,
                          absl::Time until, bool held) {
  CutLink& cut = peer_cuts_[{from, to}];
  if (until > cut.until) cut = {.until = until, .held = held};
}

absl::Time SimNetwork::CutUntil(Node from, Node to) const {
  const auto cut = cuts_.find({from, to});
  return cut == cuts_.end() ? absl::InfinitePast() : cut->second.until;
}

bool SimNetwork::Connects(const PeerId& self, const PeerId& peer) const {
  const auto here = endpoints_.find(self);
  const auto there = endpoints_.find(peer);
  return here != endpoints_.end() && there != endpoints_.end() &&
         std::max(CutUntil(here->second.node, there->second.node),
                  CutUntil(there->second.node, here->second.node)) <=
             queue_->now();
}

void SimNetwork::Heal() {
  cuts_.clear();
  peer_cuts_.clear();
  bounds_ = {};
  faults_.loss = faults_.duplicate = faults_.reorder = faults_.slow = 0;
}

absl::Duration SimNetwork::Delay() {
  return faults_.delay_min +
         (faults_.delay_max - faults_.delay_min) * rng_.Uniform();
}

void SimNetwork::Send(const PeerId& from, const PeerId& to, Message message) {
  if (on_send && !tampering_) on_send(from, message);
  if (tamper && !tampering_) {
    tampering_ = true;
    const bool passes = tamper(from, to, &message);
    tampering_ = false;
    if (!passes) return;
  }
  SendUntampered(from, to, message);
}

void SimNetwork::SendUntampered(const PeerId& from, const PeerId& to,
                                const Message& message) {
  const auto note = [&](const char* what) {
    if (log)
      log(absl::StrCat(from.ToString(), " -> ", to.ToString(), what,
                       Describe(message)));
  };
  const auto receiver = nodes_.find(to);
  if (receiver == nodes_.end()) {
    ++stats_.to_nobody;
    return note(" (nobody there): ");
  }
  const auto sender = nodes_.find(from);
  SL_CHECK(sender != nodes_.end(), "a sender that was never attached");
  if (endpoints_.count(from) == 0) return;  // Who has ended sends nothing.
  if (watch && !watch(from, to, message, /*arrives=*/false)) {
    ++stats_.lost;
    return note(" (lost by a fault): ");
  }
  const absl::Time now = queue_->now();
  const auto frames = std::make_shared<Frames>();
  message.header.SerializeToString(&frames->header);
  frames->payloads = message.payloads;
  const auto arrive = [this, from, to, frames] { Reach(from, to, frames); };

  const bool within_process = sender->second == receiver->second;
  const absl::Duration delay = within_process ? absl::ZeroDuration() : Delay();
  const auto delay_of_cut = [&](const auto& cuts, const auto& ends) {
    const auto cut = cuts.find(ends);
    if (cut == cuts.end() || now >= cut->second.until)
      return absl::ZeroDuration();
    ++(cut->second.held ? stats_.held : stats_.cut);
    return cut->second.held ? cut->second.until - now
                            : absl::InfiniteDuration();
  };
  const absl::Duration kept = std::max(
      peer_cuts_.empty() ? absl::ZeroDuration()
                         : delay_of_cut(peer_cuts_, std::pair(from, to)),
      cuts_.empty()
          ? absl::ZeroDuration()
          : delay_of_cut(cuts_, std::pair(sender->second, receiver->second)));
  if (kept == absl::InfiniteDuration()) return note(" (cut): ");
  absl::Time& last = last_arrival_[{from, to}];
  if (within_process) {
    note(": ");
    last = std::max(last, now + kept);
    queue_->At(last, arrive);
    return;
  }
  const std::optional<absl::Time> leaves =
      Leaves(sender->second, receiver->second, frames->bytes());
  if (!leaves.has_value()) {
    ++stats_.refused;
    return note(" (refused, the queue is full): ");
  }
  absl::Time at = *leaves + delay + kept;
  if (faults_.loss > 0 && rng_.Chance(faults_.loss)) {
    ++stats_.lost;
    return note(" (lost): ");
  }
  if (faults_.slow > 0 && rng_.Chance(faults_.slow)) {
    ++stats_.slow;
    at += Delay() * 19;
  }
  if (faults_.reorder > 0 && rng_.Chance(faults_.reorder)) {
    ++stats_.reordered;
    at += Delay() * 5;  // Those behind it do not wait.
  } else {
    at = last = std::max(last, at);
  }
  note(": ");
  queue_->At(at, arrive);
  if (faults_.duplicate > 0 && rng_.Chance(faults_.duplicate)) {
    ++stats_.repeated;
    const double lateness = rng_.Uniform();
    queue_->At(at + absl::Seconds(2) * lateness * lateness * lateness, arrive);
  }
}

size_t SimNetwork::Frames::bytes() const {
  size_t bytes = header.size();
  for (const Payload& payload : payloads) bytes += payload.size();
  return bytes;
}

std::optional<absl::Time> SimNetwork::Leaves(Node from, Node to, size_t bytes) {
  const absl::Time now = queue_->now();
  if (bounds_.queue_max == 0) return now;
  std::deque<absl::Time>& leaves_at = queues_[{from, to}].leaves_at;
  while (!leaves_at.empty() && leaves_at.front() <= now) leaves_at.pop_front();
  if (leaves_at.size() >= static_cast<size_t>(bounds_.queue_max))
    return std::nullopt;
  stats_.queued += !leaves_at.empty();
  const absl::Time begins = leaves_at.empty() ? now : leaves_at.back();
  leaves_at.push_back(begins +
                      absl::Seconds(1) *
                          (static_cast<double>(bytes) /
                           static_cast<double>(bounds_.bytes_per_second)));
  longest_queue_ = std::max(longest_queue_, leaves_at.back() - now);
  return leaves_at.back();
}

void SimNetwork::Reach(const PeerId& from, const PeerId& to,
                       const FramesPtr& frames) {
  const auto receiver = endpoints_.find(to);
  if (receiver == endpoints_.end()) {
    ++stats_.to_nobody;
    return;
  }
  if (endpoints_.count(from) == 0) {
    if (silenced_.count(from) > 0) {
      ++stats_.dropped_of_the_dead;
      return;
    }
    ++stats_.of_the_dead;
  }
  Message message;
  SL_CHECK(message.header.ParseFromString(frames->header),
           "a header does not parse");
  for (const Payload& payload : frames->payloads) {
    message.payloads.push_back(Payload::Copy(payload.data(), payload.size()));
  }
  if (watch && !watch(from, to, message, /*arrives=*/true)) {
    ++stats_.lost;
    return;
  }
  if (receiver->second.reached) receiver->second.reached(from);
  SimMachine& machine = (*machines_)[receiver->second.node];
  if (!machine.stands_still()) return Deliver(from, to, message);
  ++stats_.while_still;
  machine.Arrive([this, from, to, message] { Deliver(from, to, message); });
}

void SimNetwork::Deliver(const PeerId& from, const PeerId& to,
                         const Message& message) {
  const auto receiver = endpoints_.find(to);
  if (receiver == endpoints_.end()) return;  // It ended while it stood still.
  ++stats_.delivered;
  if (on_deliver) on_deliver(from, to, message);
  // The receiver may detach itself while it runs.
  const Receive receive = receiver->second.receive;
  receive(from, message);
}

static std::string Describe(const wire::Refusal& refusal) {
  switch (refusal.why_case()) {
    case wire::Refusal::kRetry:
      return "retry";
    case wire::Refusal::kFenced:
      return "fenced";
    case wire::Refusal::kMoved:
      return refusal.moved().has_to()
                 ? absl::StrCat("moved to ", refusal.moved().to().server(), ".",
                                refusal.moved().to().thread())
                 : "moved";
    case wire::Refusal::kRejected:
      return refusal.rejected();
    default:
      return "ok";
  }
}

std::string Describe(const Message& message) {
  std::string text = absl::StrCat("[view ", message.header.view_number(), "] ");
  switch (message.header.body_case()) {
    case wire::Header::kPushRequest:
      for (const wire::Push& push : message.header.push_request().push()) {
        absl::StrAppend(&text,
                        push.has_advance()        ? " advance to "
                        : push.has_installation() ? " installation at "
                                                  : " push of ",
                        push.clock(), ": shard ", push.shard(), " seq ",
                        push.seq());
      }
      break;
    case wire::Header::kPushReply:
      absl::StrAppend(&text, "push reply:");
      for (const wire::PushAnswer& answer :
           message.header.push_reply().answer()) {
        absl::StrAppend(&text, " shard ", answer.shard(), " ",
                        Describe(answer.refusal()), " accepted ",
                        answer.accepted_seq());
      }
      break;
    case wire::Header::kPullRequest:
      for (const wire::Pull& pull : message.header.pull_request().pull()) {
        absl::StrAppend(&text, "pull ", pull.id());
        if (pull.has_step()) {
          absl::StrAppend(&text, " at clock ", pull.step().clock(), " own ",
                          pull.step().own_clock());
        } else if (pull.has_state()) {
          absl::StrAppend(&text, " of the state at clock ",
                          pull.state().clock());
        } else {
          absl::StrAppend(&text, " to join");
        }
        absl::StrAppend(&text, ": shards ", absl::StrJoin(pull.shard(), " "));
      }
      break;
    case wire::Header::kPullReply:
      absl::StrAppend(&text, "pull reply:");
      for (const wire::PullAnswer& answer :
           message.header.pull_reply().answer()) {
        absl::StrAppend(&text, " ", answer.pull(), " shard ", answer.shard());
        if (answer.has_parked()) {
          absl::StrAppend(&text, " parked for rank ", answer.parked().rank(),
                          " at ", answer.parked().clock());
        } else if (answer.has_refusal()) {
          absl::StrAppend(&text, " ", Describe(answer.refusal()));
        } else {
          const wire::PullAnswer::Values& values =
              answer.has_state() ? answer.state().values() : answer.values();
          absl::StrAppend(&text, " v", values.version(), " clock ",
                          values.shard_clock());
        }
      }
      break;
    case wire::Header::kView: {
      const wire::View& view = message.header.view();
      absl::StrAppend(&text, "view ", view.number(), " ",
                      wire::JobState_Name(view.state()), " workers");
      for (const wire::WorkerMember& worker : view.worker()) {
        absl::StrAppend(&text, " ", worker.rank(), "/", worker.incarnation(),
                        worker.founder() ? "f" : "", worker.done() ? "d" : "");
      }
      absl::StrAppend(&text, " servers");
      for (const wire::ServerMember& server : view.server()) {
        absl::StrAppend(&text, " ", server.index(),
                        server.draining() ? "-" : "");
      }
      absl::StrAppend(&text, " owners");
      for (int i = 0; i < view.owner_server_size(); ++i) {
        absl::StrAppend(&text, " ", view.owner_server(i), ".",
                        view.owner_thread(i));
      }
      for (const wire::Move& move : view.move()) {
        absl::StrAppend(&text, " move ", move.id(), ": ", move.shard(), " to ",
                        move.server(), ".", move.thread());
      }
      for (const wire::Split& split : view.split()) {
        absl::StrAppend(&text, " split ", split.shard(), " at ", split.at());
      }
      for (const wire::Phase& phase : view.phase()) {
        absl::StrAppend(&text, " ", ModeText(phase.mode()), " from ",
                        phase.from());
      }
      if (view.has_change()) {
        absl::StrAppend(&text, " change ", view.change().id(), " to ",
                        view.change().has_ending()
                            ? "the end"
                            : ModeText(view.change().mode()));
      }
      absl::StrAppend(&text, " group ", view.group(), " arrived ",
                      view.arrived(), " entered ", view.entered(), " ",
                      view.end().reason());
      break;
    }
    case wire::Header::kHandOver: {
      const wire::HandOver& hand_over = message.header.hand_over();
      absl::StrAppend(&text, "hand over shard ", hand_over.shard(), " { ",
                      hand_over.feed().ShortDebugString(), " } from ",
                      hand_over.position(), ":");
      for (const wire::HandOverRecord& record : hand_over.record())
        absl::StrAppend(&text, " {", record.ShortDebugString(), "}");
      break;
    }
    default:
      absl::StrAppend(&text, message.header.ShortDebugString());
  }
  return text;
}

}  // namespace slackline::sim
