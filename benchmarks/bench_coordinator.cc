// What does an event cost the coordinator, as a job grows?
//
// The real CoordinatorCore, without sockets, on virtual time, with a job of
// some servers, workers and shards. Each kind of event comes some thousand
// times; reported is the processor time for one, what it sends left in memory.
//
// Expected: a heartbeat costs the same in every job. The end of a move and the
// joining and leaving of a worker make a new view, which goes to all members as
// a change: so they cost some microseconds for each member, and none for each
// shard; change_bytes is the size of such a message, view_bytes that of the
// whole view. A collective of the workers' programs costs a look at all of
// them for each call.
//
// Before anything is timed, a member follows all changes, and must have the
// coordinator's view at the end.
//
// stdout: one JSON line for each size of job. stderr: the same as a table.
#include <time.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/report.h"
#include "common/status.h"
#include "common/view/shard_map.h"
#include "server/coordinator/coordinator_core.h"

namespace slackline::bench {
namespace {

struct Size {
  int servers = 1;
  int workers = 1;
  int shards = 1;
};

// Seconds that this thread has had a core.
double CpuSeconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

class Job {
 public:
  explicit Job(const Size& size) : size_(size), core_(OptionsOf(size)) {
    core_.Start(now_);
    for (int s = 0; s < size_.servers; ++s)
      servers_.push_back(Join(PeerId::Kind::kServer, s));
    for (int w = 0; w < size_.workers; ++w)
      workers_.push_back(Join(PeerId::Kind::kWorker, w));
    SL_CHECK(core_.state() == wire::RUNNING, "the job does not run");
    Follow(core_.view());
  }

  void WorkerBeats(int rank) {
    Message message;
    message.header.set_view_number(core_.view().number());
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(workers_[Index(rank)].incarnation);
    heartbeat.mutable_worker()->set_clock(1);
    Send(workers_[Index(rank)].peer, message);
  }
  // With the load of each shard that it owns.
  void ServerBeats(int server) {
    Message message;
    message.header.set_view_number(core_.view().number());
    wire::Heartbeat& heartbeat = *message.header.mutable_heartbeat();
    heartbeat.set_incarnation(servers_[Index(server)].incarnation);
    run::ThreadLoad& load = *heartbeat.mutable_server()->add_thread();
    for (int i = 0; i < size_.shards / size_.servers; ++i)
      load.add_shard()->set_shard(i);
    Send(servers_[Index(server)].peer, message);
  }
  // A user orders a move, and the shard's owner says that it is done: two
  // views.
  void Move(int32_t shard) {
    const int32_t owner = core_.view().owner_server(shard);
    Message order;
    wire::Call& call = *order.header.mutable_call();
    call.set_call_id(++calls_);
    call.mutable_move_shards()->add_shard(shard);
    call.mutable_move_shards()->set_server((owner + 1) % size_.servers);
    Send({.kind = PeerId::Kind::kObserver, .instance = 9}, order);
    SL_CHECK(core_.view().move_size() == 1, "the move was not ordered");
    Message done;
    wire::Heartbeat& heartbeat = *done.header.mutable_heartbeat();
    heartbeat.set_incarnation(servers_[Index(owner)].incarnation);
    run::HandOverState& state = *heartbeat.mutable_server()->add_hand_over();
    state.set_shard(shard);
    state.set_move(core_.view().move(0).id());
    state.set_state(run::HandOverState::DONE);
    done.header.set_view_number(core_.view().number());
    Send(servers_[Index(owner)].peer, done);
    SL_CHECK(core_.view().owner_server(shard) != owner, "the move is not done");
  }
  // Two views.
  void LeaveAndJoin(int rank) {
    Message leave;
    wire::Call& call = *leave.header.mutable_call();
    call.set_call_id(++calls_);
    call.set_incarnation(workers_[Index(rank)].incarnation);
    call.mutable_leave()->set_failure("restarted");
    Send(workers_[Index(rank)].peer, leave);
    workers_[Index(rank)] = Join(PeerId::Kind::kWorker, rank);
  }
  // Of all workers.
  void Gather() {
    ++calls_;
    for (int rank = 0; rank < size_.workers; ++rank) {
      Message message;
      wire::Call& call = *message.header.mutable_call();
      call.set_call_id(calls_);
      call.set_incarnation(workers_[Index(rank)].incarnation);
      call.mutable_gather()->set_place(calls_);
      Send(workers_[Index(rank)].peer, message);
    }
  }

  // What member `server 0` has made of the changes that it was sent.
  const View& followed() const { return *followed_; }
  const CoordinatorCore& core() const { return core_; }
  size_t change_bytes() const { return change_bytes_; }  // The largest.
  // Only while it is verified.
  void SetFollowing(bool following) { following_ = following; }

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }

  static CoordinatorCore::Options OptionsOf(const Size& size) {
    CoordinatorCore::Options options;
    options.job = "job";
    options.config_hash = "hash";
    options.servers = size.servers;
    options.workers = size.workers;
    options.shard_elements = 100;
    options.config.mutable_rebalance()->set_mode(config::Rebalance::MANUAL);
    return options;
  }
  struct Member {
    PeerId peer;
    Incarnation incarnation = 0;
  };
  Member Join(PeerId::Kind kind, int index) {
    const bool worker = kind == PeerId::Kind::kWorker;
    const PeerId peer{.kind = kind, .index = index, .instance = ++tokens_};
    Message message;
    wire::JoinRequest& join = *message.header.mutable_join_request();
    join.set_role(worker ? wire::JoinRequest::WORKER
                         : wire::JoinRequest::SERVER);
    join.set_index(index);
    join.set_token(peer.instance);
    join.set_job("job");
    join.set_config_hash("hash");
    join.set_host("10.0.0.1");
    if (worker) {
      wire::Table& table = *join.add_table();
      table.set_name("weight");
      table.mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
      table.add_shape(int64_t{100} * size_.shards);
      join.set_steps_total(1000);
      join.set_steps_per_epoch(100);
    } else {
      join.add_thread()->add_endpoint("tcp://10.0.0.1:7000");
    }
    Send(peer, message);
    for (const Outgoing& out : effects_.sends) {
      const wire::JoinReply& reply = out.message.header.join_reply();
      if (reply.code() == wire::OK)
        return {.peer = peer, .incarnation = reply.incarnation()};
    }
    SL_CHECK(false, "a join was refused");
    return {};
  }

  void Send(const PeerId& from, const Message& message) {
    effects_ = {};
    core_.OnMessage(from, message, now_, &effects_);
    LookAt(effects_);
  }
  void LookAt(const CoordinatorCore::Effects& effects) {
    if (!following_) return;
    for (const Outgoing& out : effects.sends) {
      if (out.to.kind != PeerId::Kind::kServer || out.to.index != 0) continue;
      if (!out.message.header.has_view_change()) continue;
      const wire::ViewChange& change = out.message.header.view_change();
      if (followed_ == nullptr || change.base() != followed_->number())
        continue;
      change_bytes_ = std::max(change_bytes_, change.ByteSizeLong());
      auto next = followed_->With(change);
      SL_CHECK(next.ok(), next.status().ToString());
      followed_ = *std::move(next);
    }
  }
  void Follow(const wire::View& view) {
    auto made = View::Create(view);
    SL_CHECK(made.ok(), made.status().ToString());
    followed_ = *std::move(made);
  }

  const Size size_;
  absl::Time now_ = absl::UnixEpoch();
  CoordinatorCore core_;
  CoordinatorCore::Effects effects_;
  std::vector<Member> servers_, workers_;
  uint64_t tokens_ = 0;
  uint64_t calls_ = 0;
  std::shared_ptr<const View> followed_;
  bool following_ = true;
  size_t change_bytes_ = 0;
};

// Microseconds of one event; of `repeats` times `count` of them.
Spread MicrosOf(int repeats, int count, const std::function<void(int)>& event) {
  std::vector<double> samples;
  for (int r = 0; r < repeats; ++r) {
    const double start = CpuSeconds();
    for (int i = 0; i < count; ++i) event(i);
    samples.push_back((CpuSeconds() - start) * 1e6 / count);
  }
  return SpreadOf(std::move(samples));
}

void Run(const Size& size, bool smoke) {
  Job job(size);
  for (int i = 0; i < 3; ++i) {
    job.Move(i % size.shards);
    job.LeaveAndJoin(i % size.workers);
    job.ServerBeats(i % size.servers);
  }
  SL_CHECK(job.followed().ToProto().SerializeAsString() ==
               job.core().view().SerializeAsString(),
           "a member that followed the changes has another view");
  job.SetFollowing(false);
  const int repeats = smoke ? 1 : 5;
  const int few = smoke ? 2 : 20;
  const int many = smoke ? 10 : 5000;
  const Spread worker_beat = MicrosOf(
      repeats, many, [&](int i) { job.WorkerBeats(i % size.workers); });
  const Spread server_beat = MicrosOf(
      repeats, many, [&](int i) { job.ServerBeats(i % size.servers); });
  const Spread move =
      MicrosOf(repeats, few, [&](int i) { job.Move(i % size.shards); });
  const Spread join = MicrosOf(
      repeats, few, [&](int i) { job.LeaveAndJoin(i % size.workers); });
  const Spread gather = MicrosOf(repeats, few, [&](int) { job.Gather(); });
  // What a member makes of one change.
  wire::ViewChange change;
  change.set_base(job.followed().number());
  change.set_number(change.base() + 1);
  change.set_state(wire::RUNNING);
  change.add_owner()->set_shard(size.shards / 2);
  const Spread with = MicrosOf(repeats, few, [&](int) {
    SL_CHECK(job.followed().With(change).ok(), "the change does not fit");
  });
  const size_t view_bytes = job.core().view().ByteSizeLong();
  std::fprintf(
      stderr,
      "%7d %7d %7d | %9.2f %9.2f | %9.1f %9.1f %9.2f %9.1f | %8zu %8zu\n",
      size.servers, size.workers, size.shards, worker_beat.median,
      server_beat.median, move.median / 2, join.median / 2,
      gather.median / size.workers, with.median, job.change_bytes(),
      view_bytes);
  PrintJsonLine(
      "coordinator",
      {{"servers", size.servers},
       {"workers", size.workers},
       {"shards", size.shards},
       {"worker_heartbeat_us", ToJson(worker_beat)},
       {"server_heartbeat_us", ToJson(server_beat)},
       {"move_of_two_views_us", ToJson(move)},
       {"rejoin_of_two_views_us", ToJson(join)},
       {"gather_of_all_us", ToJson(gather)},
       {"member_applies_change_us", ToJson(with)},
       {"change_bytes", job.change_bytes()},
       {"view_bytes", view_bytes},
       {"checksum",
        Checksum(job.core().view().SerializeAsString().data(), view_bytes)}});
}

int Main(int argc, char** argv) {
  CLI::App app("What an event costs the coordinator, as a job grows.");
  bool smoke = false;
  Size one;
  app.add_flag("--smoke", smoke, "Tiny, for the test suite");
  CLI::Option* const servers = app.add_option("--servers", one.servers,
                                              "With --workers and --shards: "
                                              "one job of this size")
                                   ->check(CLI::Range(2, 100000));
  app.add_option("--workers", one.workers)
      ->check(CLI::Range(1, 1000000))
      ->needs(servers);
  app.add_option("--shards", one.shards)
      ->check(CLI::Range(1, 1000000))
      ->needs(servers);
  CLI11_PARSE(app, argc, argv);
  std::vector<Size> sizes = {{10, 10, 1000},
                             {100, 100, 10000},
                             {1000, 1000, 1000},
                             {1000, 1000, 100000}};
  if (smoke) sizes = {{2, 2, 8}};
  if (!servers->empty()) sizes = {one};
  std::fprintf(
      stderr,
      "%7s %7s %7s | microseconds of processor time for one\n"
      "servers workers  shards | heartbeat of    | new view  new view"
      "   call of  member's |    bytes of\n"
      "                        |   worker    server |   by move   by join"
      "    gather   change |   change     view\n",
      "", "", "");
  for (const Size& size : sizes) Run(size, smoke);
  return 0;
}

}  // namespace
}  // namespace slackline::bench

int main(int argc, char** argv) { return slackline::bench::Main(argc, argv); }
