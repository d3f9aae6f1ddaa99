#include "server/coordinator/membership.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/block/bounds.h"
#include "common/membership/end_status.h"
#include "common/shortened.h"
#include "common/status.h"
#include "common/sync/phases.h"
#include "server/coordinator/join_check.h"
#include "server/coordinator/milliseconds.h"

namespace slackline {
namespace {

// Of one heartbeat; members send a quarter of it.
constexpr int kRecordsMax = 1024;
constexpr size_t kModelHashBytesMax = 64;

bool HasBadValues(const run::MetricRecord& record) {
  return static_cast<size_t>(record.value_size()) > kMetricValuesMax ||
         absl::c_any_of(record.value(), [](const auto& value) {
           return value.first.size() > kMetricNameBytesMax ||
                  !std::isfinite(value.second);
         });
}

constexpr size_t kPastTokensMax = 4096;
constexpr size_t kAskingMax = 4096;
constexpr size_t kWhyRemovedMax = 1024;
constexpr size_t kHostBytesMax = 256;
// Several times what a member without a place waits before it asks again.
constexpr absl::Duration kAsksAgainWithin = absl::Seconds(1);
// Pauses after which a lease is made longer, one after the other.
constexpr int kGracesMax = 8;

std::string ProcessText(bool is_worker, int32_t index, int64_t pid,
                        const std::string& host) {
  return absl::StrCat(is_worker ? "worker " : "server ", index, " (pid ", pid,
                      " on ", host, ")");
}

}  // namespace

std::string Describe(const Member& member) {
  return ProcessText(member.worker_role(), member.index(), member.join.pid(),
                     member.join.host());
}

Outgoing HeartbeatReplyTo(const Member& member) {
  Outgoing out{.to = member.peer, .message = {}};
  wire::HeartbeatReply& reply = *out.message.header.mutable_heartbeat_reply();
  reply.set_incarnation(member.incarnation);
  reply.set_code(wire::OK);
  reply.set_records_acked(member.records_acked);
  return out;
}

std::string LostText(const GoneMember& gone) {
  return absl::StrCat(gone.sentence, ", at clock ", gone.member.worker.clock());
}

void PutWho(const Member& member, wire::JobEnd* end) {
  if (member.worker_role()) {
    end->add_worker(member.index());
  } else {
    end->add_server(member.index());
  }
}

wire::ServerMember ServerOf(const Member& server) {
  wire::ServerMember listed;
  listed.set_index(server.index());
  listed.set_incarnation(server.incarnation);
  listed.set_host_id(server.join.host_id());
  *listed.mutable_thread() = server.join.thread();
  listed.set_draining(server.draining);
  return listed;
}

wire::WorkerMember WorkerOf(const Member& worker) {
  wire::WorkerMember listed;
  listed.set_rank(worker.index());
  listed.set_incarnation(worker.incarnation);
  listed.set_founder(worker.founder);
  listed.set_done(worker.done);
  listed.set_host(worker.join.host());
  listed.set_begins_at(worker.begins_at);
  listed.set_keeps_state(worker.join.keeps_state());
  return listed;
}

bool Membership::AllTrained() const {
  return std::all_of(workers_.begin(), workers_.end(),
                     [](const auto& entry) { return entry.second->trained; });
}

Membership::Membership(const Options& options)
    : options_(options),
      awake_(options.lease / kHeartbeatsPerLease),
      terms_(options.terms),
      next_server_(options.terms.servers),
      host_came_(options.host_has_joined) {}

// ---- Leases -----------------------------------------------------------------

void Membership::Run(absl::Time now) {
  const absl::Duration gap_max = options_.lease / kHeartbeatsPerLease;
  if (awake_.Run(now) <= gap_max / 4) return;
  const absl::Time lately = awake_.At(now) - options_.lease + gap_max;
  for (auto& [incarnation, member] : members_) {
    if (member.graces == kGracesMax || member.heard_awake >= lately) continue;
    member.heard_awake = lately;
    ++member.graces;
  }
}

void Membership::Hear(const Member& of, absl::Time now) {
  Member& member = At(of);
  member.heard = now;
  member.heard_awake = awake_.At(now);
  member.graces = 0;
}

std::vector<Incarnation> Membership::Expired(absl::Time now) {
  std::vector<Incarnation> expired;
  const absl::Time awake = awake_.At(now);
  const absl::Time looked = std::exchange(looked_, awake);
  if (awake <= next_expiry_) return expired;
  next_expiry_ = absl::InfiniteFuture();
  for (const auto& [incarnation, member] : members_) {
    const absl::Time end = member.heard_awake + options_.lease;
    if (end < looked) {
      expired.push_back(incarnation);
    } else {
      // Whose lease is over is looked at once more, right away.
      next_expiry_ = std::min(next_expiry_, std::max(end, awake));
    }
  }
  return expired;
}

// ---- Members ----------------------------------------------------------------

const Member* Membership::Find(Incarnation incarnation) const {
  const auto found = members_.find(incarnation);
  return found == members_.end() ? nullptr : &found->second;
}

const Member* Membership::FindServer(int32_t index) const {
  const auto found = servers_.find(index);
  return found == servers_.end() ? nullptr : found->second;
}

const Member* Membership::FindWorker(int32_t rank) const {
  const auto found = workers_.find(rank);
  return found == workers_.end() ? nullptr : found->second;
}

void Membership::NoteViewKnown(const Member& member, uint64_t number) {
  uint64_t& known = At(member).view_known;
  known = std::max(known, number);
}

void Membership::NoteViewSent(const Member& member, uint64_t number) {
  At(member).view_sent = number;
}

bool Membership::NoteLatest(const Member& member, int64_t sent_micros) {
  if (sent_micros == 0) return true;
  int64_t& latest = At(member).sent_micros;
  if (sent_micros < latest) return false;
  latest = sent_micros;
  return true;
}

void Membership::SetStats(const Member& worker, const run::WorkerStats& stats,
                          const wire::View& view) {
  Member& member = At(worker);
  member.worker = stats;
  member.worker.clear_answers();  // Who looks for slow servers has them.
  member.trained |= HasTrained(member.worker.progress(), view);
}

void Membership::SetStats(const Member& server, run::ServerStats stats) {
  At(server).server = std::move(stats);
}

bool Membership::NoteRefused(const Member& member) {
  return !std::exchange(At(member).refused, true);
}

void Membership::SetDone(const Member& worker) {
  Member& member = At(worker);
  member.done = member.trained = true;
}

void Membership::SetDraining(const Member& server, bool draining) {
  At(server).draining = draining;
}

void Membership::SetBeginsAt(const Member& worker, Clock clock) {
  Member& member = At(worker);
  member.begins_at = clock;
  member.worker.set_clock(clock);
}

int Membership::FollowView(const wire::View& view) {
  int listed = 0;
  for (const wire::ServerMember& server : view.server()) {
    const auto found = members_.find(server.incarnation());
    if (found == members_.end() || found->second.worker_role() ||
        found->second.index() != server.index() ||
        found->second.join.thread_size() != server.thread_size()) {
      continue;
    }
    found->second.draining = server.draining();
    ++listed;
  }
  for (const wire::WorkerMember& worker : view.worker()) {
    const auto found = members_.find(worker.incarnation());
    if (found == members_.end() || !found->second.worker_role() ||
        found->second.index() != worker.rank()) {
      continue;
    }
    Member& member = found->second;
    member.done = worker.done();
    member.trained =
        worker.done() || HasTrained(member.worker.progress(), view);
    member.founder = worker.founder();
    member.begins_at = worker.begins_at();
    ++listed;
  }
  return listed;
}

Member Membership::Remove(Incarnation incarnation, bool running) {
  const auto found = members_.find(incarnation);
  SL_CHECK(found != members_.end(), "a member that is not there");
  Member member = std::move(found->second);
  members_.erase(found);
  (member.worker_role() ? workers_ : servers_).erase(member.index());
  waiters_.erase({member.worker_role(), member.index()});
  news_ = true;
  changed_.insert(incarnation);
  // Until the job runs, the next first worker may bring another model.
  if (!running && workers_.empty()) terms_.ForgetModel();
  past_tokens_[member.join.token()] = incarnation;
  past_token_order_.push_back(member.join.token());
  if (past_token_order_.size() > kPastTokensMax) {
    past_tokens_.erase(past_token_order_.front());
    past_token_order_.pop_front();
  }
  return member;
}

std::string Membership::OnHost(bool is_worker, int32_t index) const {
  const std::vector<std::string>& hosts =
      is_worker ? options_.worker_hosts : options_.server_hosts;
  if (index < 0 || static_cast<size_t>(index) >= hosts.size()) return "";
  return absl::StrCat(" on ", hosts[static_cast<size_t>(index)]);
}

std::vector<std::string> Membership::NamesOf(const Missing& missing) const {
  std::vector<std::string> names;
  for (const int32_t index : missing.servers)
    names.push_back(absl::StrCat("server ", index, OnHost(false, index)));
  for (const int32_t rank : missing.workers)
    names.push_back(absl::StrCat("worker ", rank, OnHost(true, rank)));
  return names;
}

std::vector<std::string> Membership::WhyMissing(const Missing& missing) const {
  std::vector<std::string> sentences;
  const auto add = [&](bool is_worker, int32_t index) {
    const auto found = obstacles_.find({is_worker, index});
    if (found != obstacles_.end()) sentences.push_back(found->second);
  };
  for (const int32_t index : missing.servers) add(false, index);
  for (const int32_t rank : missing.workers) add(true, rank);
  return sentences;
}

std::string Membership::NoteObstacle(bool is_worker, int32_t index,
                                     const std::string& who,
                                     const std::string& why) {
  const int count = is_worker ? options_.terms.workers : options_.terms.servers;
  const auto& there = is_worker ? workers_ : servers_;
  if (index < 0 || index >= count || there.count(index) > 0) return "";
  std::string sentence =
      absl::StrCat(who, " cannot join: ", Shortened(why, kWhyBytesMax));
  std::string& known = obstacles_[{is_worker, index}];
  if (known == sentence) return "";
  known = sentence;
  return sentence;
}

std::string Membership::OnCannotJoin(const wire::CannotJoin& cannot) {
  if (cannot.job() != options_.terms.job ||
      (cannot.role() != wire::JoinRequest::WORKER &&
       cannot.role() != wire::JoinRequest::SERVER)) {
    return "";
  }
  const bool is_worker = cannot.role() == wire::JoinRequest::WORKER;
  return NoteObstacle(is_worker, cannot.index(),
                      ProcessText(is_worker, cannot.index(), cannot.pid(),
                                  Shortened(cannot.host(), kHostBytesMax)),
                      cannot.reason());
}

void Membership::NoteWhyRemoved(Incarnation incarnation,
                                const std::string& why) {
  why_removed_[incarnation] = Shortened(why, kWhyBytesMax);
  if (why_removed_.size() > kWhyRemovedMax)
    why_removed_.erase(why_removed_.begin());
}

std::string Membership::WhyRemoved(Incarnation incarnation) const {
  const auto found = why_removed_.find(incarnation);
  return found == why_removed_.end() ? "" : found->second;
}

Membership::Missing Membership::WhoIsMissing() const {
  Missing missing;
  for (int i = 0; i < options_.terms.servers; ++i) {
    if (servers_.count(i) == 0) missing.servers.push_back(i);
  }
  for (int i = 0; i < options_.terms.workers; ++i) {
    if (workers_.count(i) == 0) missing.workers.push_back(i);
  }
  return missing;
}

std::vector<Membership::Knock> Membership::RecentKnocks(absl::Time now) const {
  std::vector<Knock> recent;
  for (const auto& [rank, knock] : knocks_) {
    if (now - knock.at <= options_.lease) recent.push_back(knock);
  }
  return recent;
}

// ---- Joins ------------------------------------------------------------------

absl::Time Membership::AskedUntil() const {
  if (!host_came_) return absl::InfiniteFuture();
  absl::Time until = absl::InfinitePast();
  for (const auto& [token, at] : asking_) until = std::max(until, at);
  return until + kAsksAgainWithin;
}

Membership::JoinAnswer Membership::OnJoin(const PeerId& from,
                                          const wire::JoinRequest& join,
                                          const wire::View& view,
                                          const std::string& why_no_worker,
                                          absl::Time now) {
  JoinAnswer answer = Answer(from, join, view, why_no_worker, now);
  if (answer.joined != nullptr) {
    obstacles_.erase({answer.joined->worker_role(), answer.joined->index()});
  } else if (answer.reply.code() == wire::REJECTED &&
             answer.reply.obstacle() == wire::JoinReply::OBSTACLE_UNSPECIFIED &&
             join.job() == options_.terms.job && WhyNoJoin(join).empty()) {
    const bool is_worker = join.role() == wire::JoinRequest::WORKER;
    answer.refused = NoteObstacle(
        is_worker, join.index(),
        ProcessText(is_worker, join.index(), join.pid(), join.host()),
        answer.reply.error());
  }
  const bool without_place =
      answer.reply.code() == wire::RETRY ||
      answer.reply.obstacle() == wire::JoinReply::JOB_ENDED;
  if (!without_place) {
    asking_.erase(join.token());
  } else {
    if (asking_.size() >= kAskingMax) {
      std::erase_if(asking_, [&](const auto& entry) {
        return awake_.At(now) - entry.second > kAsksAgainWithin;
      });
    }
    if (asking_.size() < kAskingMax) asking_[join.token()] = awake_.At(now);
  }
  // An old process's request may be late.
  host_came_ |= join.role() == wire::JoinRequest::SERVER &&
                join.index() == options_.host_server &&
                (answer.joined != nullptr || without_place);
  return answer;
}

Membership::JoinAnswer Membership::Answer(const PeerId& from,
                                          const wire::JoinRequest& join,
                                          const wire::View& view,
                                          const std::string& why_no_worker,
                                          absl::Time now) {
  const bool is_worker = join.role() == wire::JoinRequest::WORKER;
  JoinAnswer answer;
  answer.reply.set_token(join.token());
  answer.reply.set_job(options_.terms.job);
  answer.reply.set_run(view.run());
  answer.reply.set_lease_ms(
      static_cast<int32_t>(absl::ToInt64Milliseconds(options_.lease)));
  answer.reply.set_coordinator_may_return(options_.coordinator_may_return);
  // Who comes later begins with the others' parameters, and what its program
  // has beside them is not of the checkpoint's clock any more.
  const auto name_checkpoint = [&](const Member& member) {
    if (!member.worker_role() || !member.founder) return;
    answer.reply.set_checkpoint(options_.checkpoint_folder);
    answer.reply.set_checkpoint_sha256(options_.terms.checkpoint_sha256);
  };
  const auto say = [&](wire::Code code, const std::string& error,
                       wire::JoinReply::Obstacle obstacle = {}) {
    answer.reply.set_code(code);
    answer.reply.set_error(error);
    answer.reply.set_obstacle(obstacle);
    return answer;
  };
  const Member* const present = is_worker ? FindWorker(join.index())
                                : join.role() == wire::JoinRequest::SERVER
                                    ? FindServer(join.index())
                                    : nullptr;
  if (present != nullptr && present->join.token() == join.token()) {
    Hear(*present, now);  // It asks again because our reply was lost.
    answer.reply.set_incarnation(present->incarnation);
    answer.repeated = present;
    name_checkpoint(*present);
    return say(wire::OK, "");
  }
  if (const auto past = past_tokens_.find(join.token());
      past != past_tokens_.end()) {
    // A late copy, perhaps of a process that is gone. If it lives, its next
    // heartbeat tells it that this incarnation is over.
    answer.reply.set_incarnation(past->second);
    return say(wire::OK, "");
  }
  std::string why = WhyNoJoin(join);
  wire::JoinRequest complete;
  if (why.empty()) why = terms_.WhyOfAnotherJob(join);
  if (why.empty() && view.has_end()) {
    *answer.reply.mutable_end() = view.end();
    return say(wire::REJECTED,
               absl::StrCat("the job has ended: ", view.end().reason()),
               wire::JoinReply::JOB_ENDED);
  }
  if (why.empty()) {
    complete = terms_.Complete(join);
    why =
        terms_.WhyUnfit(complete, view.state() == wire::RUNNING, next_server_);
  }
  if (!why.empty()) return say(wire::REJECTED, why);
  if (present != nullptr) {
    SayHeld(from, join, *present, now, &answer.reply);
    return answer;
  }
  if (is_worker && !why_no_worker.empty())
    return say(wire::RETRY, why_no_worker, wire::JoinReply::NOT_NOW);
  answer.replaces = !is_worker && view.state() != wire::FORMING &&
                    join.index() < next_server_;
  const Member& member =
      Admit(from, std::move(complete), view.state() == wire::FORMING, now);
  answer.reply.set_incarnation(member.incarnation);
  name_checkpoint(member);
  answer.joined = &member;
  return say(wire::OK, "");
}

void Membership::SayHeld(const PeerId& from, const wire::JoinRequest& join,
                         const Member& present, absl::Time now,
                         wire::JoinReply* reply) {
  reply->set_obstacle(wire::JoinReply::PLACE_HELD);
  // Perhaps a restart after a crash, perhaps a second copy: the lease tells.
  // Who is heard a lease after the other has come is no process that died.
  Waiter& waiter = waiters_[{present.worker_role(), join.index()}];
  if (waiter.token != join.token())
    waiter = {.token = join.token(), .since = now};
  if (present.heard - waiter.since >= options_.lease) {
    reply->set_code(wire::REJECTED);
    return reply->set_error(
        absl::StrCat(Describe(present),
                     " holds this place and lives: this is a second process "
                     "with its --index; end one of the two, or give this one "
                     "an index of its own"));
  }
  if (present.worker_role()) {
    Knock& knock = knocks_[join.index()];
    knock = {.from = from, .join = join, .at = now};
    knock.join.clear_config();
  }
  reply->set_code(wire::RETRY);
  reply->set_error(absl::StrCat(
      Describe(present), " holds this place",
      present.done ? " and has completed its work" : "", "; it was heard ",
      MillisecondsText(now - present.heard),
      " ago; the place is free when that process ends and its lease of ",
      MillisecondsText(options_.lease), " has run out"));
}

Member& Membership::Admit(const PeerId& from, wire::JoinRequest join,
                          bool founder, absl::Time now) {
  const bool is_worker = join.role() == wire::JoinRequest::WORKER;
  const Incarnation incarnation = next_incarnation_++;
  Member& member = members_[incarnation];
  member.peer = from;
  if (is_worker) {
    terms_.OnWorker(join);
    join.clear_table();  // They are those of the model.
  }
  news_ = true;
  changed_.insert(incarnation);
  member.join = std::move(join);
  member.incarnation = incarnation;
  member.founder = founder;
  Hear(member, now);
  next_expiry_ = std::min(next_expiry_, member.heard_awake + options_.lease);
  const int32_t index = member.index();
  if (is_worker) {
    knocks_.erase(index);
    workers_[index] = &member;
  } else {
    next_server_ = std::max(next_server_, index + 1);
    servers_[index] = &member;
  }
  return member;
}

std::vector<run::MetricRecord> Membership::TakeRecords(
    const wire::Heartbeat& heartbeat, const Member& of) {
  Member& worker = At(of);
  std::vector<run::MetricRecord> records;
  const int count = std::min(heartbeat.record_size(), kRecordsMax);
  for (int i = 0; i < count; ++i) {
    if (heartbeat.first_record() + i != worker.records_acked) continue;
    ++worker.records_acked;
    changed_.insert(worker.incarnation);
    run::MetricRecord record = heartbeat.record(i);
    if (record.kind() != run::MetricRecord::TRAIN &&
        record.kind() != run::MetricRecord::EVAL) {
      continue;  // Of no version that we know.
    }
    record.set_rank(worker.index());
    record.set_model_sha256(
        Shortened(record.model_sha256(), kModelHashBytesMax));
    record.DiscardUnknownFields();
    if (HasBadValues(record)) record.clear_value();
    records.push_back(std::move(record));
  }
  return records;
}

// ---- Reports ----------------------------------------------------------------

void Membership::PutStatus(const StatusQuestion& question,
                           wire::StatusReply* status) const {
  const auto about = [&](const Member& member, auto* stats) {
    stats->set_incarnation(member.incarnation);
    stats->set_alive(true);
    stats->set_pid(member.join.pid());
    stats->set_heard_ms_ago(
        absl::ToInt64Milliseconds(question.moment.now - member.heard));
  };
  for (const auto& [incarnation, member] : members_) {
    if (member.worker_role()) {
      run::WorkerStats& worker = *status->add_worker();
      worker = member.worker;
      worker.set_rank(member.index());
      worker.set_done(member.done);
      about(member, &worker);
    } else {
      run::ServerStats& server = *status->add_server();
      server = member.server;
      server.set_index(member.index());
      about(member, &server);
    }
  }
  status->set_next_server(next_server_);
}

// ---- For the next coordinator -----------------------------------------------

void Membership::Keep(absl::Time now, KeptState* kept) {
  for (const Incarnation incarnation : std::exchange(changed_, {})) {
    const std::string key = NumberedKey("member", incarnation);
    const auto found = members_.find(incarnation);
    if (found == members_.end()) {
      kept->Remove(key);
      continue;
    }
    Member& member = found->second;
    member.kept_at = now;
    coordinator::MemberState state;
    *state.mutable_peer() = PeerState(member.peer);
    *state.mutable_join() = member.join;
    state.set_records_acked(member.records_acked);
    *state.mutable_worker() = member.worker;
    *state.mutable_server() = member.server;
    kept->Put(key, state);
  }
  if (!std::exchange(news_, false)) return;
  coordinator::MembersState state;
  state.set_next_incarnation(next_incarnation_);
  state.set_next_server(next_server_);
  for (const uint64_t token : past_token_order_) {
    coordinator::MembersState::Past& past = *state.add_past();
    past.set_token(token);
    past.set_incarnation(past_tokens_.at(token));
  }
  kept->Put("members", state);
  terms_.Keep(kept);
}

absl::Status Membership::Load(const StateReader& reader, const Moment& moment,
                              CoordinatorEffects*) {
  coordinator::MembersState state;
  SL_RETURN_IF_ERROR(reader.Read("members", &state));
  next_incarnation_ = std::max<Incarnation>(state.next_incarnation(), 1);
  next_server_ = std::max(state.next_server(), options_.terms.servers);
  for (const coordinator::MembersState::Past& past : state.past()) {
    if (past_tokens_.emplace(past.token(), past.incarnation()).second)
      past_token_order_.push_back(past.token());
  }
  SL_RETURN_IF_ERROR(terms_.Load(reader));
  const bool forms = !reader.Has("view");  // Else the view says it.
  return reader.ReadAll<coordinator::MemberState>(
      "member", [&](uint64_t incarnation, const auto& kept) -> absl::Status {
        Member& member = members_[incarnation];
        SL_ASSIGN_OR_RETURN(member.peer, PeerOf(kept.peer()));
        member.join = kept.join();
        member.incarnation = incarnation;
        member.records_acked = kept.records_acked();
        member.worker = kept.worker();
        member.server = kept.server();
        member.kept_at = moment.now;
        member.founder = forms;
        Hear(member, moment.now);
        // Whose place this process has come to take looks for nobody.
        const bool is_host = !member.worker_role() &&
                             member.index() == options_.host_server &&
                             !options_.host_has_joined;
        if (!is_host) member.heard_awake += options_.found_within;
        next_expiry_ =
            std::min(next_expiry_, member.heard_awake + options_.lease);
        auto& places = member.worker_role() ? workers_ : servers_;
        if (incarnation >= next_incarnation_ || member.index() < 0 ||
            !places.emplace(member.index(), &member).second ||
            (member.worker_role() && !terms_.has_model())) {
          return absl::InvalidArgumentError("it has no place in the job");
        }
        return absl::OkStatus();
      });
}

}  // namespace slackline
