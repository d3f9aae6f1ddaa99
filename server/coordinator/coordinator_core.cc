#include "server/coordinator/coordinator_core.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/config/stop_rules.h"
#include "common/metrics/histogram.h"
#include "common/status.h"
#include "common/sync/phases.h"

namespace slackline {
namespace {

// Enough for a rejoined worker that repeats an old call; names are used once.
constexpr size_t kPassedBarriersMax = 1024;
// 4 TiB of float32; and owners of shards that a view of some MiB can list.
constexpr int64_t kTableElementsMax = int64_t{1} << 40;
constexpr int64_t kShardsMax = 1 << 20;
constexpr int32_t kServersMax = 100000;
constexpr size_t kUserCallsMax = 64;
constexpr int kHeartbeatsPerLease = 5;  // As common/membership sends them.

std::string Seconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(duration), " ms");
}

std::string TableText(const wire::Table& table) {
  return absl::StrCat(table.name(), "[", absl::StrJoin(table.shape(), ", "),
                      "]");
}

// Empty if the coordinator can place these tables; else completes "worker 2".
std::string WhyTablesUnfit(const wire::JoinRequest& join,
                           int64_t shard_elements) {
  int64_t shards = 0;
  for (const wire::Table& table : join.table()) {
    int64_t elements = 1;
    for (const int64_t extent : table.shape()) {
      if (extent < 1 || extent > kTableElementsMax / elements) {
        return absl::StrCat(" has table ", TableText(table),
                            "; extents of at least 1 and at most ",
                            kTableElementsMax, " elements are required");
      }
      elements *= extent;
    }
    if (table.shard_elements() < 0) {
      return absl::StrCat(" has table ", TableText(table), " in shards of ",
                          table.shard_elements(), " elements");
    }
    const int64_t size =
        table.shard_elements() == 0 ? shard_elements : table.shard_elements();
    shards += (elements - 1) / size + 1;
    if (shards > kShardsMax) {
      return absl::StrCat(" has tables of more than ", kShardsMax,
                          " shards; raise limits { shard_kib: ... }");
    }
  }
  return "";
}

}  // namespace

CoordinatorCore::CoordinatorCore(const Options& options)
    : options_(options),
      modes_(options.sync),
      rebalancer_(options.rebalance),
      next_server_(options.servers) {
  view_.set_number(1);
  view_.set_job(options.job);
  view_.set_state(wire::FORMING);
}

void CoordinatorCore::Start(absl::Time now) { started_ = now; }

void CoordinatorCore::OnMessage(const PeerId& from, const Message& message,
                                absl::Time now, Effects* effects) {
  switch (message.header.body_case()) {
    case wire::Header::kJoinRequest:
      return OnJoin(from, message.header.join_request(), now, effects);
    case wire::Header::kHeartbeat:
      return OnHeartbeat(from, message, now, effects);
    case wire::Header::kCall:
      return OnCall(from, message, now, effects);
    default: {
      Outgoing reply{.to = from, .message = {}};
      reply.message.header.set_view_number(view_.number());
      reply.message.header.mutable_error_reply()->set_error(absl::StrCat(
          "the coordinator takes joins, heartbeats and calls, not body ",
          static_cast<int>(message.header.body_case())));
      effects->sends.push_back(std::move(reply));
    }
  }
}

// ---- Joining --------------------------------------------------------------

CoordinatorCore::Member* CoordinatorCore::Find(wire::JoinRequest::Role role,
                                               int32_t index) {
  for (auto& [incarnation, member] : members_) {
    if (member.join.role() == role && member.join.index() == index)
      return &member;
  }
  return nullptr;
}

std::string CoordinatorCore::Describe(const Member& member) const {
  return absl::StrCat(member.worker_role() ? "worker " : "server ",
                      member.join.index(), " (pid ", member.join.pid(), " on ",
                      member.join.host(), ")");
}

std::string CoordinatorCore::WhyRejected(const wire::JoinRequest& join) const {
  const bool is_worker = join.role() == wire::JoinRequest::WORKER;
  if (!is_worker && join.role() != wire::JoinRequest::SERVER) {
    return absl::StrCat("a member joins as server or worker, not in role ",
                        static_cast<int>(join.role()));
  }
  const std::string who =
      absl::StrCat(is_worker ? "worker " : "server ", join.index());
  const int count = is_worker ? options_.workers : options_.servers;
  if (join.job() != options_.job) {
    return absl::StrCat(who, " belongs to job '", join.job(),
                        "', the coordinator at this address to '", options_.job,
                        "'; give each job its own coordinator { port: ... }");
  }
  if (join.config_hash() != options_.config_hash) {
    return absl::StrCat(
        who, " was started with another config than the coordinator (hash ",
        join.config_hash(), ", not ", options_.config_hash,
        "); start all processes with one file and the same --mode and "
        "--set");
  }
  if (view_.state() == wire::FINISHED || view_.state() == wire::FAILED) {
    return absl::StrCat("the job has ended: ", view_.reason());
  }
  const bool new_server = !is_worker && view_.state() == wire::RUNNING;
  if (new_server &&
      (join.index() < next_server_ || join.index() >= kServersMax)) {
    return absl::StrCat(who,
                        ": the job runs; a server that is added to it takes "
                        "an index that no other had, from ",
                        next_server_, " on, below ", kServersMax);
  }
  if (!new_server && (join.index() < 0 || join.index() >= count)) {
    return absl::StrCat(who, ": the config has ", count,
                        is_worker ? " workers" : " servers",
                        ", so the index must be in [0, ", count, ")");
  }
  if (!is_worker && join.thread_size() == 0)
    return absl::StrCat(who, " offers no shard threads");
  if (!is_worker) return "";
  if (join.table_size() == 0)
    return absl::StrCat(who, " has a model without tables");
  if (const std::string unfit = WhyTablesUnfit(join, options_.shard_elements);
      !unfit.empty()) {
    return absl::StrCat(who, unfit);
  }
  if (join.steps_total() < 1 || join.steps_per_epoch() < 1) {
    return absl::StrCat(who, " has ", join.steps_total(), " steps to do, ",
                        join.steps_per_epoch(),
                        " in an epoch; at least 1 is required");
  }
  // The first worker's tables are the job's.
  for (const auto& [incarnation, member] : members_) {
    if (!member.worker_role()) continue;
    if (join.steps_total() != member.join.steps_total() ||
        join.steps_per_epoch() != member.join.steps_per_epoch()) {
      return absl::StrCat(who, " has ", join.steps_total(), " steps to do, ",
                          join.steps_per_epoch(), " in an epoch, but ",
                          Describe(member), " has ", member.join.steps_total(),
                          " and ", member.join.steps_per_epoch(),
                          "; all workers must train on the same data");
    }
    for (int i = 0; i < std::max(join.table_size(), member.join.table_size());
         ++i) {
      const std::string ours =
          i < join.table_size() ? TableText(join.table(i)) : "no table";
      const std::string theirs = i < member.join.table_size()
                                     ? TableText(member.join.table(i))
                                     : "no table";
      if (ours != theirs) {
        return absl::StrCat(
            who, " has ", ours, " where ", Describe(member), " has ", theirs,
            "; all workers must train the same model on the same data");
      }
    }
    break;
  }
  return "";
}

void CoordinatorCore::OnJoin(const PeerId& from, const wire::JoinRequest& join,
                             absl::Time now, Effects* effects) {
  Outgoing out{.to = from, .message = {}};
  out.message.header.set_view_number(view_.number());
  wire::JoinReply& reply = *out.message.header.mutable_join_reply();
  reply.set_token(join.token());
  reply.set_lease_ms(
      static_cast<int32_t>(absl::ToInt64Milliseconds(options_.lease)));
  Member* const present = Find(join.role(), join.index());
  if (present != nullptr && present->join.token() == join.token()) {
    present->heard = now;  // It asks again because our reply was lost.
    reply.set_code(wire::OK);
    reply.set_incarnation(present->incarnation);
    effects->sends.push_back(std::move(out));
    SendView(*present, effects);
    return;
  }
  if (const auto past = past_tokens_.find(join.token());
      past != past_tokens_.end()) {
    // A late copy, perhaps of a process that is gone. If it lives, its next
    // heartbeat tells it that this incarnation is over.
    reply.set_code(wire::OK);
    reply.set_incarnation(past->second);
    effects->sends.push_back(std::move(out));
    return;
  }
  const std::string rejected = WhyRejected(join);
  if (!rejected.empty()) {
    reply.set_code(wire::REJECTED);
    reply.set_error(rejected);
    effects->sends.push_back(std::move(out));
    return;
  }
  if (present != nullptr &&
      (!present->done || view_.state() != wire::RUNNING)) {
    // Perhaps a restart after a crash, perhaps a second copy: the lease tells.
    reply.set_code(wire::RETRY);
    reply.set_error(absl::StrCat(
        Describe(*present), " holds this place and was heard ",
        Seconds(now - present->heard),
        " ago; it is free when that process ends and its lease of ",
        Seconds(options_.lease), " has run out"));
    effects->sends.push_back(std::move(out));
    return;
  }
  if (present != nullptr) {
    reply.set_code(wire::REJECTED);
    reply.set_error(absl::StrCat(Describe(*present),
                                 " has already completed this place's work"));
    effects->sends.push_back(std::move(out));
    return;
  }
  if (const std::string why = ModeChanger::WhyNoneJoins(view_);
      join.role() == wire::JoinRequest::WORKER && !why.empty()) {
    reply.set_code(wire::RETRY);
    reply.set_error(why);
    effects->sends.push_back(std::move(out));
    return;
  }
  const Incarnation incarnation = next_incarnation_++;
  Member& member = members_[incarnation];
  member.peer = from;
  member.join = join;
  member.incarnation = incarnation;
  member.heard = now;
  member.founder = view_.state() == wire::FORMING;
  if (member.worker_role()) {
    regroup_ = true;
  } else {
    next_server_ = std::max(next_server_, join.index() + 1);
  }
  reply.set_code(wire::OK);
  reply.set_incarnation(incarnation);
  effects->sends.push_back(std::move(out));
  effects->log.push_back(absl::StrCat(Describe(member), " has joined"));
  if (view_.state() == wire::RUNNING) Publish(effects);
  StartIfComplete(now, effects);
}

std::vector<std::string> CoordinatorCore::Missing() const {
  std::set<int32_t> servers, workers;
  for (const auto& [incarnation, member] : members_) {
    (member.worker_role() ? workers : servers).insert(member.join.index());
  }
  std::vector<std::string> missing;
  for (int i = 0; i < options_.servers; ++i) {
    if (servers.count(i) == 0) missing.push_back(absl::StrCat("server ", i));
  }
  for (int i = 0; i < options_.workers; ++i) {
    if (workers.count(i) == 0) missing.push_back(absl::StrCat("worker ", i));
  }
  return missing;
}

void CoordinatorCore::StartIfComplete(absl::Time now, Effects* effects) {
  if (view_.state() != wire::FORMING || !Missing().empty()) return;
  std::vector<Owner> threads;
  for (int s = 0; s < options_.servers; ++s) {
    const Member& server = *Find(wire::JoinRequest::SERVER, s);
    for (int t = 0; t < server.join.thread_size(); ++t)
      threads.push_back({s, t});
  }
  const Member& worker = *Find(wire::JoinRequest::WORKER, 0);
  PlaceTables(std::vector<wire::Table>(worker.join.table().begin(),
                                       worker.join.table().end()),
              threads, options_.shard_elements, &view_);
  view_.set_steps_total(worker.join.steps_total());
  view_.set_steps_per_epoch(worker.join.steps_per_epoch());
  data_ = worker.join.data();
  for (std::string& sentence : modes_.Start(&view_)) {
    effects->log.push_back(std::move(sentence));
  }
  if (options_.sync.has_auto_()) SwitchPolicyOn(effects);
  view_.set_state(wire::RUNNING);
  running_since_ = now;
  next_plan_ =
      now + absl::Milliseconds(options_.rebalance.config.interval_ms());
  effects->log.push_back(absl::StrCat("all ", options_.servers, " servers and ",
                                      options_.workers,
                                      " workers have joined; the job runs"));
  Publish(effects);
}

// ---- The view -------------------------------------------------------------

void CoordinatorCore::Publish(Effects* effects) {
  view_.set_number(view_.number() + 1);
  if (regroup_ && view_.state() == wire::RUNNING) {
    view_.set_group(view_.number());
    regroup_ = false;
  }
  view_.clear_server();
  view_.clear_worker();
  std::map<int32_t, const Member*> servers, workers;
  for (const auto& [incarnation, member] : members_) {
    (member.worker_role() ? workers : servers)[member.join.index()] = &member;
  }
  for (const auto& [index, member] : servers) {
    wire::ServerMember& server = *view_.add_server();
    server.set_index(index);
    server.set_incarnation(member->incarnation);
    server.set_host_id(member->join.host_id());
    *server.mutable_thread() = member->join.thread();
    server.set_draining(member->draining);
  }
  for (const auto& [rank, member] : workers) {
    wire::WorkerMember& worker = *view_.add_worker();
    worker.set_rank(rank);
    worker.set_incarnation(member->incarnation);
    worker.set_founder(member->founder);
    worker.set_done(member->done);
    worker.set_host(member->join.host());
  }
  for (const auto& [incarnation, member] : members_) SendView(member, effects);
}

void CoordinatorCore::SendView(const Member& member, Effects* effects) const {
  if (view_.state() == wire::FORMING) return;  // Nothing to see yet.
  Outgoing out{.to = member.peer, .message = {}};
  out.message.header.set_view_number(view_.number());
  *out.message.header.mutable_view() = view_;
  effects->sends.push_back(std::move(out));
}

void CoordinatorCore::Remove(Incarnation incarnation, const std::string& why,
                             absl::Time now, Effects* effects) {
  const auto found = members_.find(incarnation);
  if (found == members_.end()) return;
  const Member member = std::move(found->second);
  members_.erase(found);
  past_tokens_[member.join.token()] = incarnation;
  ForgetCalls(incarnation);
  const std::string sentence = absl::StrCat(Describe(member), " ", why);
  effects->log.push_back(sentence);
  if (view_.state() != wire::RUNNING) return;
  if (!member.worker_role() && !OwnsShards(member.join.index())) {
    rebalancer_.Forget(member.join.index(), &view_);
    OrderMoves();  // It made room.
    AdvanceModes(now, effects);
    gone_servers_.push_back(member.server);
    return Publish(effects);
  }
  if (!member.worker_role()) {
    return End(wire::FAILED,
               absl::StrCat(sentence,
                            "; its shards are lost, so the job cannot go on"),
               now, effects);
  }
  gone_workers_.push_back(member.worker);
  gone_workers_.back().set_alive(false);
  gone_workers_.back().set_rank(member.join.index());
  workers_lost_.push_back(
      absl::StrCat(sentence, ", at clock ", member.worker.clock()));
  regroup_ = true;
  const bool any_worker =
      std::any_of(members_.begin(), members_.end(),
                  [](const auto& entry) { return entry.second.worker_role(); });
  if (!any_worker) {
    return End(wire::FAILED,
               absl::StrCat(workers_lost_.back(), "; no worker is left"), now,
               effects);
  }
  AdvanceModes(now, effects);
  Publish(effects);
  CompleteBarriers(effects);
  FinishIfDone(now, effects);
}

void CoordinatorCore::End(wire::JobState state, const std::string& reason,
                          absl::Time now, Effects* effects) {
  if (view_.state() == wire::FINISHED || view_.state() == wire::FAILED) return;
  if (trained_at_ == absl::InfiniteFuture()) trained_at_ = now;
  view_.set_state(state);
  view_.set_reason(reason);
  ended_at_ = now;
  effects->log.push_back(absl::StrCat(state == wire::FINISHED
                                          ? "the job has finished: "
                                          : "the job has failed: ",
                                      reason));
  Publish(effects);
}

void CoordinatorCore::Fail(const std::string& reason, absl::Time now,
                           Effects* effects) {
  End(wire::FAILED, reason, now, effects);
}

bool CoordinatorCore::Over(absl::Time now) const {
  if (view_.state() != wire::FINISHED && view_.state() != wire::FAILED)
    return false;
  if (now - ended_at_ > options_.lease) return true;
  return std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
    return entry.second.view_known >= view_.number();
  });
}

// ---- Heartbeats and time --------------------------------------------------

void CoordinatorCore::OnHeartbeat(const PeerId& from, const Message& message,
                                  absl::Time now, Effects* effects) {
  const wire::Heartbeat& heartbeat = message.header.heartbeat();
  Outgoing out{.to = from, .message = {}};
  out.message.header.set_view_number(view_.number());
  wire::HeartbeatReply& reply = *out.message.header.mutable_heartbeat_reply();
  reply.set_incarnation(heartbeat.incarnation());
  const auto found = members_.find(heartbeat.incarnation());
  if (found == members_.end() || found->second.peer != from) {
    reply.set_code(wire::FENCED);
    effects->sends.push_back(std::move(out));
    return;
  }
  Member& member = found->second;
  member.heard = now;
  member.view_known = std::max(member.view_known, message.header.view_number());
  if (heartbeat.has_worker()) member.worker = heartbeat.worker();
  if (heartbeat.has_server()) member.server = heartbeat.server();
  const uint64_t number = view_.number();
  for (int i = 0; i < heartbeat.record_size(); ++i) {
    if (heartbeat.first_record() + i != member.records_acked) continue;
    ++member.records_acked;
    run::MetricRecord record = heartbeat.record(i);
    const absl::Duration ago = absl::Seconds(record.seconds());
    record.set_seconds(
        std::max(0.0, running_since_ == absl::InfiniteFuture()
                          ? 0.0
                          : absl::ToDoubleSeconds(now - ago - running_since_)));
    latest_[record.kind()] = record;
    effects->records.push_back(record);
    if (record.kind() == run::MetricRecord::EVAL)
      StopIfEvaluationMeetsRule(record, now, effects);
  }
  reply.set_code(wire::OK);
  reply.set_records_acked(member.records_acked);
  effects->sends.push_back(std::move(out));
  if (heartbeat.has_server()) OnHandOverStates(member, now, effects);
  if (heartbeat.has_worker()) AskPolicy(now, effects);
  // A view made just now went to all.
  if (member.view_known < number && number == view_.number())
    SendView(member, effects);
}

void CoordinatorCore::OnTick(absl::Time now, Effects* effects) {
  if (view_.state() == wire::FORMING &&
      now - started_ > options_.start_timeout) {
    const std::vector<std::string> missing = Missing();
    End(wire::FAILED,
        absl::StrCat(
            absl::StrJoin(missing, ", "), " did not join within ",
            Seconds(options_.start_timeout),
            "; look at their logs, or raise limits { start_timeout_ms: ... }"),
        now, effects);
  }
  std::vector<Incarnation> expired;
  for (const auto& [incarnation, member] : members_) {
    if (now - member.heard > options_.lease) expired.push_back(incarnation);
  }
  for (const Incarnation incarnation : expired) {
    const auto found = members_.find(incarnation);
    if (found == members_.end()) continue;
    Remove(incarnation,
           absl::StrCat("is dead or cut off: not heard for ",
                        Seconds(now - found->second.heard), ", its lease is ",
                        Seconds(options_.lease)),
           now, effects);
  }
  StopIfTimeIsUp(now, effects);
  AskPolicy(now, effects);
  PlanIfDue(now, effects);
}

absl::Time CoordinatorCore::NextWakeup() const {
  absl::Time next = absl::InfiniteFuture();
  if (view_.state() == wire::FORMING) next = started_ + options_.start_timeout;
  for (const auto& [incarnation, member] : members_) {
    next = std::min(next, member.heard + options_.lease);
  }
  if (ended_at_ != absl::InfiniteFuture())
    next = std::min(next, ended_at_ + options_.lease);
  if (view_.state() == wire::RUNNING) {
    next = std::min({next, next_plan_, StopTime()});
    if (policy_.has_value()) next = std::min(next, policy_->NextLook());
  }
  return next + absl::Milliseconds(1);
}

// ---- Calls ----------------------------------------------------------------

void CoordinatorCore::Reply(const PeerId& to, uint64_t call_id, wire::Code code,
                            const std::string& error, Effects* effects,
                            const Payload* value) const {
  Outgoing out{.to = to, .message = {}};
  out.message.header.set_view_number(view_.number());
  wire::CallReply& reply = *out.message.header.mutable_call_reply();
  reply.set_call_id(call_id);
  reply.set_code(code);
  reply.set_error(error);
  if (value != nullptr) out.message.payloads.push_back(*value);
  effects->sends.push_back(std::move(out));
}

void CoordinatorCore::OnCall(const PeerId& from, const Message& message,
                             absl::Time now, Effects* effects) {
  const wire::Call& call = message.header.call();
  const uint64_t id = call.call_id();
  if (call.kind_case() == wire::Call::kStatus) {
    Reply(from, id, wire::OK, "", effects);
    *effects->sends.back()
         .message.header.mutable_call_reply()
         ->mutable_status() = Status(now, call.status().moves_known());
    return;
  }
  if (call.kind_case() == wire::Call::kStop) {
    End(wire::FAILED, call.stop().reason(), now, effects);
    return Reply(from, id, wire::OK, "", effects);
  }
  if (call.kind_case() == wire::Call::kRebalance ||
      call.kind_case() == wire::Call::kMoveShards ||
      call.kind_case() == wire::Call::kDrain ||
      call.kind_case() == wire::Call::kSetMode) {
    return OnUserCall(from, call, now, effects);
  }
  const auto member = members_.find(call.incarnation());
  if (member == members_.end() || member->second.peer != from) {
    return Reply(from, id, wire::FENCED, "", effects);
  }
  member->second.heard = now;
  const ParkedCall parked{
      .from = from, .call_id = id, .incarnation = call.incarnation()};
  const auto park = [&](std::vector<ParkedCall>& calls) {
    const bool there =
        std::any_of(calls.begin(), calls.end(), [&](const ParkedCall& other) {
          return other.from == from && other.call_id == id;
        });
    if (there) return;
    if (parked_calls_ >= options_.parked_calls_max) {
      return Reply(from, id, wire::RETRY, "too many calls wait already",
                   effects);
    }
    calls.push_back(parked);
    ++parked_calls_;
  };
  switch (call.kind_case()) {
    case wire::Call::kBarrier:
      if (std::find(passed_barriers_.begin(), passed_barriers_.end(),
                    call.barrier().name()) != passed_barriers_.end()) {
        return Reply(from, id, wire::OK, "", effects);
      }
      park(barriers_[call.barrier().name()]);
      return CompleteBarriers(effects);
    case wire::Call::kStorePut: {
      const std::string& key = call.store_put().key();
      const Payload value =
          message.payloads.empty() ? Payload() : message.payloads.front();
      if (store_.count(key) > 0)
        return Reply(from, id, wire::OK, "", effects);  // Repeated.
      if (store_bytes_ + key.size() + value.size() > options_.store_bytes_max) {
        return Reply(
            from, id, wire::REJECTED,
            absl::StrCat("the rendezvous store holds ", store_bytes_,
                         " bytes, ", value.size(), " more exceed its bound of ",
                         options_.store_bytes_max),
            effects);
      }
      store_bytes_ += key.size() + value.size();
      store_[key] = value;
      Reply(from, id, wire::OK, "", effects);
      const auto waiting = store_gets_.find(key);
      if (waiting == store_gets_.end()) return;
      for (const ParkedCall& get : waiting->second) {
        Reply(get.from, get.call_id, wire::OK, "", effects, &value);
      }
      parked_calls_ -= static_cast<int>(waiting->second.size());
      store_gets_.erase(waiting);
      return;
    }
    case wire::Call::kStoreGet: {
      const auto found = store_.find(call.store_get().key());
      if (found != store_.end()) {
        return Reply(from, id, wire::OK, "", effects, &found->second);
      }
      return park(store_gets_[call.store_get().key()]);
    }
    case wire::Call::kLeave:
      if (call.leave().failure().empty() && !member->second.worker_role()) {
        if (const std::string why = WhyServerMustStay(member->second);
            !why.empty()) {
          return Reply(from, id, wire::REJECTED, why, effects);
        }
      }
      Reply(from, id, wire::OK, "", effects);
      return OnLeave(call.leave(), call.incarnation(), now, effects);
    case wire::Call::kStepLimit:
    case wire::Call::kArrive:
    case wire::Call::kEntered:
    case wire::Call::kRegroup:
      Reply(from, id, wire::OK, "", effects);
      return OnPhaseCall(member->second, call, now, effects);
    default:
      return Reply(
          from, id, wire::REJECTED,
          absl::StrCat("unknown call ", static_cast<int>(call.kind_case())),
          effects);
  }
}

void CoordinatorCore::ForgetCalls(Incarnation incarnation) {
  for (auto* const waiting : {&barriers_, &store_gets_}) {
    for (auto entry = waiting->begin(); entry != waiting->end();) {
      parked_calls_ -= static_cast<int>(
          std::erase_if(entry->second, [&](const ParkedCall& call) {
            return call.incarnation == incarnation;
          }));
      entry = entry->second.empty() ? waiting->erase(entry) : std::next(entry);
    }
  }
}

void CoordinatorCore::CompleteBarriers(Effects* effects) {
  for (auto barrier = barriers_.begin(); barrier != barriers_.end();) {
    const bool complete =
        std::all_of(members_.begin(), members_.end(), [&](const auto& entry) {
          if (!entry.second.worker_role() || entry.second.done) return true;
          return std::any_of(barrier->second.begin(), barrier->second.end(),
                             [&](const ParkedCall& call) {
                               return call.incarnation == entry.first;
                             });
        });
    if (!complete) {
      ++barrier;
      continue;
    }
    for (const ParkedCall& call : barrier->second) {
      Reply(call.from, call.call_id, wire::OK, "", effects);
    }
    parked_calls_ -= static_cast<int>(barrier->second.size());
    if (passed_barriers_.size() >= kPassedBarriersMax) {
      passed_barriers_.pop_front();
    }
    passed_barriers_.push_back(barrier->first);
    barrier = barriers_.erase(barrier);
  }
}

void CoordinatorCore::OnLeave(const wire::Leave& leave, Incarnation incarnation,
                              absl::Time now, Effects* effects) {
  Member& member = members_.at(incarnation);
  if (!leave.failure().empty()) {
    if (view_.state() == wire::FORMING) {
      return End(wire::FAILED,
                 absl::StrCat(Describe(member), " failed: ", leave.failure()),
                 now, effects);
    }
    return Remove(incarnation, absl::StrCat("left: ", leave.failure()), now,
                  effects);
  }
  if (!member.worker_role()) {
    return Remove(incarnation, "had no shards and has left", now, effects);
  }
  if (leave.has_result()) result_ = leave.result();
  if (!member.done) {
    member.done = true;
    if (view_.state() == wire::RUNNING) {
      AdvanceModes(now, effects);
      Publish(effects);
    }
    CompleteBarriers(effects);
  }
  FinishIfDone(now, effects);
}

void CoordinatorCore::FinishIfDone(absl::Time now, Effects* effects) {
  if (view_.state() != wire::RUNNING) return;
  const bool all_done =
      std::all_of(members_.begin(), members_.end(), [](const auto& entry) {
        return !entry.second.worker_role() || entry.second.done;
      });
  if (!all_done) return;
  if (trained_at_ == absl::InfiniteFuture()) trained_at_ = now;
  if (result_.has_value()) {
    End(wire::FINISHED, "all workers have completed their steps", now, effects);
  }
}

// ---- Stop rules -----------------------------------------------------------

bool CoordinatorCore::MayStop() const {
  return view_.state() == wire::RUNNING &&
         trained_at_ == absl::InfiniteFuture();
}

absl::Time CoordinatorCore::StopTime() const {
  if (!MayStop() || !options_.stop.has_wall_seconds())
    return absl::InfiniteFuture();
  return running_since_ + absl::Seconds(options_.stop.wall_seconds());
}

Clock CoordinatorCore::SmallestClock() const {
  Clock smallest = view_.steps_total();
  for (const auto& [incarnation, member] : members_) {
    if (!member.worker_role()) continue;
    smallest = std::min<Clock>(smallest, member.worker.clock());
  }
  return smallest;
}

void CoordinatorCore::StopIfEvaluationMeetsRule(
    const run::MetricRecord& evaluation, absl::Time now, Effects* effects) {
  if (!MayStop()) return;
  const std::string rule =
      StopRuleMet(options_.stop, evaluation.loss(), evaluation.accuracy());
  if (rule.empty()) return;
  run::Result result;
  result.set_steps(evaluation.step());
  result.set_test_loss(evaluation.loss());
  result.set_test_accuracy(evaluation.accuracy());
  result.set_model_sha256(evaluation.model_sha256());
  StopByRule(absl::StrCat(rule, " at step ", evaluation.step()),
             evaluation.seconds(), result, now, effects);
}

void CoordinatorCore::StopIfTimeIsUp(absl::Time now, Effects* effects) {
  if (now < StopTime()) return;
  run::Result result;
  stopped_by_time_ = true;
  std::string rule = absl::StrCat("train.stop.wall_seconds ",
                                  options_.stop.wall_seconds(), " had passed");
  if (const auto evaluation = latest_.find(run::MetricRecord::EVAL);
      evaluation == latest_.end()) {
    absl::StrAppend(&rule, ", nothing was evaluated");
  } else {
    result.set_test_loss(evaluation->second.loss());
    result.set_test_accuracy(evaluation->second.accuracy());
    absl::StrAppend(&rule, ", the last evaluation was of step ",
                    evaluation->second.step());
  }
  StopByRule(rule, absl::ToDoubleSeconds(now - running_since_), result, now,
             effects);
}

void CoordinatorCore::StopByRule(const std::string& rule, double seconds,
                                 const run::Result& result, absl::Time now,
                                 Effects* effects) {
  stopped_ = absl::StrFormat("%s after %.1f s", rule, seconds);
  stopped_seconds_ = seconds;
  result_ = result;
  if (const auto trained = latest_.find(run::MetricRecord::TRAIN);
      trained != latest_.end()) {
    result_->set_train_loss(trained->second.loss());
  }
  End(wire::FINISHED, stopped_, now, effects);
}

// ---- What users ask for ---------------------------------------------------

void CoordinatorCore::OnUserCall(const PeerId& from, const wire::Call& call,
                                 absl::Time now, Effects* effects) {
  const std::pair<PeerId, uint64_t> id{from, call.call_id()};
  for (const auto& [past, answer] : user_calls_) {
    if (past != id) continue;
    effects->sends.push_back(answer);  // Repeated: it was done already.
    return;
  }
  Outgoing out{.to = from, .message = {}};
  wire::CallReply& reply = *out.message.header.mutable_call_reply();
  reply.set_call_id(call.call_id());
  absl::Status status;
  if (call.kind_case() == wire::Call::kSetMode) {
    absl::StatusOr<std::string> text = OnSetMode(call.set_mode(), now, effects);
    status = text.status();
    if (text.ok()) reply.set_text(*std::move(text));
  } else {
    absl::StatusOr<run::Plan> plan = OnPlacementCall(call, now, effects);
    status = plan.status();
    if (plan.ok()) *reply.mutable_plan() = *std::move(plan);
  }
  reply.set_code(status.ok() ? wire::OK : wire::REJECTED);
  reply.set_error(std::string(status.message()));
  out.message.header.set_view_number(view_.number());
  if (user_calls_.size() == kUserCallsMax) user_calls_.pop_front();
  user_calls_.push_back({id, out});
  effects->sends.push_back(std::move(out));
}

// ---- Modes ----------------------------------------------------------------

std::vector<ModeChanger::Worker> CoordinatorCore::ModeWorkers() const {
  std::vector<ModeChanger::Worker> workers;
  for (const auto& [incarnation, member] : members_) {
    if (!member.worker_role()) continue;
    workers.push_back({.rank = member.join.index(),
                       .incarnation = incarnation,
                       .clock = member.worker.clock(),
                       .done = member.done});
  }
  return workers;
}

bool CoordinatorCore::AdvanceModes(absl::Time now, Effects* effects) {
  const Clock arrived = view_.arrived();
  ModeChanger::News news =
      modes_.Advance(ModeWorkers(), view_.number() + 1,
                     absl::ToDoubleSeconds(now - running_since_), &view_);
  // They part now. Should they all-reduce once more, what they told each other
  // to connect is out of date.
  if (view_.arrived() != arrived) regroup_ = true;
  std::move(news.log.begin(), news.log.end(), std::back_inserter(effects->log));
  std::move(news.changes.begin(), news.changes.end(),
            std::back_inserter(effects->modes));
  if (!news.view_changed) return false;
  OrderMoves();  // They may have waited for a change that is done.
  return true;
}

void CoordinatorCore::OnPhaseCall(const Member& worker, const wire::Call& call,
                                  absl::Time now, Effects* effects) {
  if (view_.state() != wire::RUNNING || !worker.worker_role()) return;
  if (call.has_step_limit()) {
    modes_.OnStepLimit(worker.incarnation, call.step_limit(), view_);
  } else if (call.has_arrive()) {
    modes_.OnArrive(worker.incarnation, call.arrive(), view_);
  } else if (call.has_entered()) {
    const std::string failure = modes_.OnEntered(
        worker.join.index(), worker.incarnation, call.entered(), view_);
    if (!failure.empty()) return End(wire::FAILED, failure, now, effects);
  } else if (call.regroup().group() == view_.group()) {
    effects->log.push_back(absl::StrCat(
        Describe(worker),
        " has lost its connections to other workers; all connect anew"));
    regroup_ = true;
    return Publish(effects);
  }
  if (AdvanceModes(now, effects)) Publish(effects);
}

absl::StatusOr<std::string> CoordinatorCore::OnSetMode(
    const wire::SetMode& set_mode, absl::Time now, Effects* effects) {
  if (view_.state() != wire::RUNNING) {
    return absl::FailedPreconditionError("the job does not run");
  }
  const std::string why_not = modes_.WhyNot(view_, ModeWorkers());
  if (set_mode.automatic()) {
    if (!policy_.has_value() && !why_not.empty()) {
      return absl::FailedPreconditionError(why_not);
    }
    if (!policy_.has_value()) SwitchPolicyOn(effects);
    return "will change when the workers' step times speak for it";
  }
  if (!wire::Mode_IsValid(set_mode.mode()) ||
      set_mode.mode() == wire::MODE_UNSPECIFIED || set_mode.staleness() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no mode ", static_cast<int>(set_mode.mode()),
                     " with staleness ", set_mode.staleness()));
  }
  const SyncMode mode = SyncModeOf(set_mode);
  if (mode.mode == wire::DSSP && mode.staleness_max < mode.staleness) {
    return absl::InvalidArgumentError(absl::StrCat(
        ModeText(mode), ": the largest bound is ", mode.staleness_max,
        "; at least the smallest one, ", mode.staleness, ", is required"));
  }
  if (mode.mode == wire::BACKUP &&
      (mode.backups < 1 || mode.backups >= options_.workers)) {
    return absl::InvalidArgumentError(absl::StrCat(
        ModeText(mode), ": at least 1 backup worker and fewer than the job's ",
        options_.workers, options_.workers == 1 ? " worker" : " workers",
        options_.workers == 1 ? ", so at least 2 workers," : "",
        " are required"));
  }
  if (!why_not.empty()) return absl::FailedPreconditionError(why_not);
  const wire::Phase& present = view_.phase(view_.entered());
  const bool same = SyncModeOf(present) == mode;
  if (same && !policy_.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("the mode is ", ModeText(present), " already"));
  }
  if (policy_.has_value()) {
    policy_.reset();
    effects->log.push_back(
        "the mode is no longer chosen by the policy: a user has set it");
  }
  if (same) return absl::StrCat("stays ", ModeText(present));
  return ChangeMode(mode, "asked for by a user", now, effects);
}

std::string CoordinatorCore::ChangeMode(const SyncMode& mode,
                                        const std::string& reason,
                                        absl::Time now, Effects* effects) {
  std::string text =
      absl::StrCat("will change from ", ModeText(view_.phase(view_.entered())),
                   " to ", ModeText(mode));
  if (view_.move_size() > 0) {
    absl::StrAppend(&text, " once ", view_.move_size(),
                    " moves of shards are done");
  }
  effects->log.push_back(absl::StrCat("the mode ", text, ": ", reason));
  modes_.Want(mode, reason);
  if (AdvanceModes(now, effects)) Publish(effects);
  return text;
}

void CoordinatorCore::SwitchPolicyOn(Effects* effects) {
  policy_.emplace(ModePolicy::Options{
      .config = options_.sync.auto_(),  // Defaults if the config has none.
      .heartbeat = options_.lease / kHeartbeatsPerLease});
  effects->log.push_back(
      "the mode is chosen by the policy: by how even the workers' step times "
      "are");
}

void CoordinatorCore::AskPolicy(absl::Time now, Effects* effects) {
  if (!policy_.has_value() || view_.state() != wire::RUNNING) return;
  std::vector<ModePolicy::Worker> workers;
  for (const auto& [incarnation, member] : members_) {
    if (!member.worker_role() || member.done) continue;
    workers.push_back({.rank = member.join.index(),
                       .incarnation = incarnation,
                       .clock = member.worker.clock(),
                       .compute_seconds = member.worker.compute_seconds()});
  }
  const bool may_change = modes_.WhyNot(view_, ModeWorkers()).empty();
  const std::optional<ModePolicy::Decision> decision = policy_->Look(
      workers, view_.phase(view_.entered()).mode(), may_change, now);
  if (!decision.has_value()) return;
  ChangeMode({.mode = decision->mode, .staleness = decision->staleness},
             decision->reason, now, effects);
}

// ---- Placement ------------------------------------------------------------

std::string CoordinatorCore::WhyNothingMoves() const {
  if (view_.state() != wire::RUNNING) return "the job does not run";
  if (options_.rebalance.config.mode() == config::Rebalance::OFF) {
    return "the config says rebalance { mode: OFF }; MANUAL allows it";
  }
  return modes_.WhyNothingMoves(view_, ModeWorkers());
}

bool CoordinatorCore::OrderMoves() {
  return WhyNothingMoves().empty() &&
         rebalancer_.Order(view_.number() + 1, &view_);
}

std::vector<Rebalancer::Server> CoordinatorCore::RebalancerServers() const {
  std::vector<Rebalancer::Server> servers;
  for (const auto& [incarnation, member] : members_) {
    if (member.worker_role()) continue;
    servers.push_back({.index = member.join.index(),
                       .threads = member.join.thread_size(),
                       .draining = member.draining,
                       .stats = &member.server});
  }
  std::sort(servers.begin(), servers.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  return servers;
}

bool CoordinatorCore::OwnsShards(int32_t server) const {
  return std::find(view_.owner_server().begin(), view_.owner_server().end(),
                   server) != view_.owner_server().end();
}

std::string CoordinatorCore::WhyServerMustStay(const Member& server) const {
  const int32_t index = server.join.index();
  const bool arriving = std::any_of(
      view_.move().begin(), view_.move().end(),
      [&](const wire::Move& move) { return move.server() == index; });
  if (index == 0) {
    return absl::StrCat(Describe(server), " hosts the coordinator");
  }
  if (arriving || OwnsShards(index)) {
    return absl::StrCat(Describe(server),
                        " still has shards, or is to get some");
  }
  return "";
}

absl::StatusOr<run::Plan> CoordinatorCore::OnPlacementCall(
    const wire::Call& call, absl::Time now, Effects* effects) {
  const auto refuse = [](const std::string& why) {
    return absl::FailedPreconditionError(why);
  };
  if (const std::string why = WhyNothingMoves(); !why.empty()) {
    return refuse(why);
  }
  const absl::StatusOr<std::shared_ptr<const View>> view = View::Create(view_);
  SL_CHECK(view.ok(), view.status().ToString());  // It was published.
  absl::StatusOr<run::Plan> plan;
  bool adopt = true;
  Member* drained = nullptr;
  if (call.kind_case() == wire::Call::kRebalance) {
    if (!rebalancer_.idle()) {
      return refuse(absl::StrCat(rebalancer_.Present().move_size(),
                                 " moves are under way; try again when they "
                                 "are done"));
    }
    plan = rebalancer_.Plan(**view, RebalancerServers(),
                            Rebalancer::Aim::kBalance, now);
    adopt = !call.rebalance().dry_run();
  } else if (call.kind_case() == wire::Call::kMoveShards) {
    const wire::MoveShards& moves = call.move_shards();
    plan = rebalancer_.PlanMoves(
        **view, RebalancerServers(),
        std::vector<int32_t>(moves.shard().begin(), moves.shard().end()),
        moves.server(), moves.thread());
  } else {
    const int32_t index = call.drain().server();
    drained = Find(wire::JoinRequest::SERVER, index);
    if (drained == nullptr) {
      return refuse(absl::StrCat("the job has no server ", index));
    }
    if (index == 0) {
      return refuse(
          "server 0 hosts the coordinator and has to stay; its shards can be "
          "moved: slackline move");
    }
    const bool others =
        std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
          return !entry.second.worker_role() && !entry.second.draining &&
                 &entry.second != drained;
        });
    if (!others) return refuse("no other server is left to take the shards");
    const bool before = drained->draining;
    drained->draining = true;
    plan = rebalancer_.Plan(**view, RebalancerServers(),
                            Rebalancer::Aim::kDrainOnly, now);
    if (!plan.ok()) drained->draining = before;
  }
  if (!plan.ok() || !adopt) return plan;
  effects->log.push_back(absl::StrCat(
      drained == nullptr ? ""
                         : absl::StrCat(Describe(*drained), " is drained: "),
      plan->summary()));
  const uint64_t number = view_.number() + 1;
  const bool split = rebalancer_.Adopt(*plan, number, &view_);
  if (rebalancer_.Order(number, &view_) || split || drained != nullptr) {
    Publish(effects);
  }
  return plan;
}

void CoordinatorCore::PlanIfDue(absl::Time now, Effects* effects) {
  if (now < next_plan_) return;
  next_plan_ =
      now + absl::Milliseconds(options_.rebalance.config.interval_ms());
  if (!WhyNothingMoves().empty() || !rebalancer_.idle()) return;
  const bool draining =
      std::any_of(members_.begin(), members_.end(), [&](const auto& entry) {
        return entry.second.draining && OwnsShards(entry.second.join.index());
      });
  const bool automatic =
      options_.rebalance.config.mode() == config::Rebalance::AUTO;
  if (!draining && !automatic) return;
  const absl::StatusOr<std::shared_ptr<const View>> view = View::Create(view_);
  SL_CHECK(view.ok(), view.status().ToString());  // It was published.
  const absl::StatusOr<run::Plan> plan = rebalancer_.Plan(
      **view, RebalancerServers(),
      automatic ? Rebalancer::Aim::kBalance : Rebalancer::Aim::kDrainOnly, now);
  if (!plan.ok() || (plan->move_size() == 0 && plan->split_size() == 0)) return;
  effects->log.push_back(absl::StrCat("rebalancing: ", plan->summary()));
  const uint64_t number = view_.number() + 1;
  rebalancer_.Adopt(*plan, number, &view_);
  rebalancer_.Order(number, &view_);
  Publish(effects);
}

void CoordinatorCore::OnHandOverStates(const Member& server, absl::Time now,
                                       Effects* effects) {
  if (view_.state() != wire::RUNNING) return;
  rebalancer_.Observe(RebalancerServers(), now);
  bool any = false;
  for (const run::HandOverState& state : server.server.hand_over()) {
    if (state.state() == run::HandOverState::LOST) {
      return End(
          wire::FAILED,
          absl::StrCat("server ", state.to_server(),
                       ", which was just taking over shard ", state.shard(),
                       " from server ", server.join.index(),
                       ", has died; its shards are lost"),
          now, effects);
    }
    if (state.state() != run::HandOverState::DONE) continue;
    run::MoveRecord record;
    if (!rebalancer_.Done(state, absl::ToDoubleSeconds(now - running_since_),
                          now, &view_, &record)) {
      continue;
    }
    effects->log.push_back(absl::StrCat(
        "shard ", record.shard(), " (", record.name(),
        ") has moved from server ", record.from_server(), " to server ",
        record.to_server(), ": ", record.bytes(), " bytes in ",
        record.copy_micros() / 1000, " ms, not served for at most ",
        record.pause_micros(), " us"));
    effects->moves.push_back(std::move(record));
    any = true;
  }
  if (!any) return;
  // Loads have to be measured anew before they say anything.
  next_plan_ = std::max(
      next_plan_,
      now + absl::Milliseconds(options_.rebalance.config.interval_ms()));
  OrderMoves();
  AdvanceModes(now, effects);
  Publish(effects);
}

// ---- Reports --------------------------------------------------------------

run::Summary CoordinatorCore::Summary() const {
  run::Summary summary;
  summary.set_job(options_.job);
  summary.set_workers(options_.workers);
  summary.set_servers(options_.servers);
  summary.set_data(data_);
  std::vector<run::WorkerStats> workers = gone_workers_;
  run::Histogram clocks, updates;
  for (const auto& [incarnation, member] : members_) {
    if (member.worker_role()) {
      workers.push_back(member.worker);
      workers.back().set_rank(member.join.index());
    } else {
      summary.set_dropped(summary.dropped() + member.server.dropped());
      MergeHistogram(member.server.staleness_clocks(), &clocks);
      MergeHistogram(member.server.staleness_updates(), &updates);
    }
  }
  for (const run::ServerStats& server : gone_servers_) {
    summary.set_dropped(summary.dropped() + server.dropped());
    MergeHistogram(server.staleness_clocks(), &clocks);
    MergeHistogram(server.staleness_updates(), &updates);
  }
  summary.set_shards_moved(rebalancer_.shards_moved());
  summary.set_bytes_moved(rebalancer_.bytes_moved());
  *summary.mutable_move_pause_micros() = rebalancer_.PauseMicros();
  summary.set_mode_changes(modes_.changes());
  int64_t examples = 0;
  std::map<int32_t, run::WorkerSummary> by_rank;
  for (const run::WorkerStats& worker : workers) {
    examples += worker.examples();
    summary.set_steps(std::max(summary.steps(), worker.clock()));
    summary.set_bytes_pushed(summary.bytes_pushed() + worker.bytes_pushed());
    summary.set_bytes_pulled(summary.bytes_pulled() + worker.bytes_pulled());
    summary.set_retries(summary.retries() + worker.retries());
    // The gone come first: a rank's last incarnation is what stays.
    run::WorkerSummary& last = by_rank[worker.rank()];
    last.set_rank(worker.rank());
    last.set_steps(worker.clock());
    last.set_examples(worker.examples());
    last.set_compute_seconds(worker.compute_seconds());
    last.set_wait_seconds(worker.wait_seconds());
    last.set_bytes_pushed(worker.bytes_pushed());
    last.set_bytes_pulled(worker.bytes_pulled());
  }
  for (const auto& [rank, worker] : by_rank) *summary.add_worker() = worker;
  *summary.mutable_staleness_clocks() = PercentilesOf(clocks);
  *summary.mutable_staleness_updates() = PercentilesOf(updates);
  *summary.mutable_staleness_clocks_histogram() = clocks.bin();
  *summary.mutable_staleness_updates_histogram() = updates.bin();
  if (running_since_ != absl::InfiniteFuture() &&
      trained_at_ != absl::InfiniteFuture()) {
    const double seconds = absl::ToDoubleSeconds(trained_at_ - running_since_);
    summary.set_wall_seconds(stopped_.empty() ? seconds : stopped_seconds_);
    // Who was stopped went on until it heard of it.
    if (seconds > 0)
      summary.set_examples_per_second(static_cast<double>(examples) / seconds);
  }
  if (result_.has_value()) {
    // What the last heartbeats said, after the end.
    summary.set_steps(stopped_by_time_ ? SmallestClock() : result_->steps());
    summary.set_train_loss(result_->train_loss());
    summary.set_test_loss(result_->test_loss());
    summary.set_test_accuracy(result_->test_accuracy());
    summary.set_model_sha256(result_->model_sha256());
  }
  summary.set_stopped(stopped_);
  for (const std::string& lost : workers_lost_) summary.add_workers_lost(lost);
  return summary;
}

wire::StatusReply CoordinatorCore::Status(absl::Time now,
                                          int64_t moves_known) const {
  wire::StatusReply status;
  *status.mutable_view() = view_;
  for (const auto& [incarnation, member] : members_) {
    const int64_t heard_ms = absl::ToInt64Milliseconds(now - member.heard);
    if (member.worker_role()) {
      run::WorkerStats& worker = *status.add_worker();
      worker = member.worker;
      worker.set_rank(member.join.index());
      worker.set_incarnation(incarnation);
      worker.set_alive(true);
      worker.set_done(member.done);
      worker.set_pid(member.join.pid());
      worker.set_heard_ms_ago(heard_ms);
    } else {
      run::ServerStats& server = *status.add_server();
      server = member.server;
      server.set_index(member.join.index());
      server.set_incarnation(incarnation);
      server.set_alive(true);
      server.set_pid(member.join.pid());
      server.set_heard_ms_ago(heard_ms);
    }
  }
  for (const auto& [kind, record] : latest_) *status.add_latest() = record;
  if (running_since_ != absl::InfiniteFuture()) {
    status.set_run_seconds(
        absl::ToDoubleSeconds(std::min(now, trained_at_) - running_since_));
  }
  if (view_.state() == wire::FORMING) {
    for (const std::string& missing : Missing()) status.add_missing(missing);
  }
  *status.mutable_plan() = rebalancer_.Present();
  int64_t number = rebalancer_.shards_moved() -
                   static_cast<int64_t>(rebalancer_.last_moves().size());
  for (const run::MoveRecord& record : rebalancer_.last_moves()) {
    if (number++ >= moves_known) *status.add_moved() = record;
  }
  status.set_moves(rebalancer_.shards_moved());
  status.set_next_server(next_server_);
  for (const run::ModeRecord& record : modes_.last_changes()) {
    *status.add_mode_changed() = record;
  }
  if (policy_.has_value()) status.set_mode_policy(policy_->Text(now));
  return status;
}

}  // namespace slackline
