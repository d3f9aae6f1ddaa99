#include "worker/collective/mesh_collective.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
#include "common/thread_name.h"
#include "common/timeline/event_names.h"
#include "worker/collective/rendezvous.h"

namespace slackline {

std::string OperationText(const Mesh::Operation& operation, int64_t number,
                          int rank, int32_t world_size) {
  return absl::StrCat(operation.root.has_value() ? "broadcast " : "all-reduce ",
                      number, " on rank ", rank, " of ", world_size, ": ");
}

absl::Status ConnectionsLost(const std::string& prefix,
                             const std::vector<int>& lost,
                             const std::string& reason) {
  return absl::UnavailableError(absl::StrCat(
      prefix,
      lost.empty()
          ? ""
          : absl::StrCat("lost the connection to ", RanksText(lost), ": "),
      reason, "; the group must be rebuilt"));
}

MeshCollective::MeshCollective(const GroupOptions& options,
                               std::unique_ptr<Mesh> mesh,
                               std::unique_ptr<Mesh> sums)
    : rank_(options.rank),
      world_size_(options.world_size),
      link_(options.link),
      time_(options.time),
      tracks_{options.track, options.sums_track},
      meshes_{std::move(mesh), std::move(sums)} {
  for (const LaneIndex lane : {kRanks, kServers}) {
    if (meshes_[lane] != nullptr)
      operations_[lane] = std::thread([this, lane] { Run(lane); });
  }
  if (meshes_[kRanks] != nullptr) watcher_ = std::thread([this] { Watch(); });
}

MeshCollective::~MeshCollective() {
  bool idle = true;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const Lane& lane : lanes_) idle &= lane.completed == lane.started;
  }
  for (std::condition_variable& changed : work_changed_) changed.notify_one();
  if (!idle) Abort(absl::CancelledError("the collective is being destroyed"));
  for (std::thread& thread : operations_) {
    if (thread.joinable()) thread.join();
  }
  if (meshes_[kRanks] == nullptr) return;
  meshes_[kRanks]->EndWatch();
  watcher_.join();
}

Collective::Ticket MeshCollective::AllReduceAsync(absl::Span<float> data) {
  return Start(kRanks, {.data = data, .root = std::nullopt});
}

Collective::Ticket MeshCollective::SumByServersAsync(absl::Span<float> data) {
  SL_CHECK(has_servers(), "this group is not connected to servers");
  return Start(kServers, {.data = data, .root = std::nullopt});
}

Collective::Ticket MeshCollective::BroadcastAsync(absl::Span<float> data,
                                                  Rank root) {
  const auto index = static_cast<int32_t>(root);
  SL_CHECK(index >= 0 && index < world_size_,
           absl::StrCat("broadcast from rank ", index, " of ", world_size_));
  return Start(kRanks, {.data = data, .root = root});
}

Collective::Ticket MeshCollective::Start(LaneIndex index,
                                         const Operation& operation) {
  const MutexLock lock(mutex_);
  Lane& lane = lanes_[index];
  const auto ticket = static_cast<Ticket>(lane.started++ * kLanes + index);
  if (meshes_[index] == nullptr) {
    lane.completed = lane.started;
  } else if (failure_.ok()) {
    lane.queue.push_back(operation);
    work_changed_[index].notify_one();
  }
  return ticket;
}

absl::Status MeshCollective::Wait(Ticket ticket) {
  const auto number = static_cast<int64_t>(ticket) / kLanes;
  MutexLock lock(mutex_);
  const Lane& lane = lanes_[static_cast<int64_t>(ticket) % kLanes];
  SL_CHECK(number >= 0 && number < lane.started,
           absl::StrCat("wait for operation ", number, " of ", lane.started));
  while (failure_.ok() ? number >= lane.completed
                       : lanes_[kRanks].running || lanes_[kServers].running) {
    lock.Wait(done_changed_);
  }
  return failure_;
}

void MeshCollective::Interrupt() {
  for (std::condition_variable& changed : work_changed_) changed.notify_one();
  done_changed_.notify_all();
  for (const std::unique_ptr<Mesh>& mesh : meshes_) {
    if (mesh != nullptr) mesh->Interrupt();
  }
}

void MeshCollective::Abort(absl::Status reason) {
  SL_CHECK(!reason.ok(), "a collective cannot be aborted with status OK");
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(reason);
  }
  Interrupt();
}

MeshCollective::SteadyTime MeshCollective::OccupyLink(
    LaneIndex lane, const Operation& operation) {
  const SteadyTime now = std::chrono::steady_clock::now();
  if (!link_.has_value() || operation.root.has_value()) return now;
  const size_t bytes = operation.data.size() * sizeof(float);
  const absl::Duration takes = lane == kServers
                                   ? link_->Occupied(bytes)
                                   : RingTime(*link_, bytes, world_size_);
  link_free_ = std::max(now, link_free_) + absl::ToChronoNanoseconds(takes);
  return link_free_;
}

void MeshCollective::Run(LaneIndex index) {
  NameThisThread(index == kRanks ? "all-reduce" : "server sums");
  Mesh& mesh = *meshes_[index];
  if (absl::Status status = mesh.BeginWatch(); !status.ok())
    Abort(std::move(status));
  MutexLock lock(mutex_);
  Lane& lane = lanes_[index];
  bool failed_here = false;
  for (;;) {
    while (lane.queue.empty() && !stopping_ && failure_.ok())
      lock.Wait(work_changed_[index]);
    if (!failure_.ok() || lane.queue.empty()) break;
    const Operation operation = lane.queue.front();
    lane.queue.pop_front();
    lane.running = true;
    const int64_t number = lane.completed;
    const SteadyTime least_end = OccupyLink(index, operation);
    lock.Unlock();
    const bool recorded = IsOn(tracks_[index]);
    const absl::Time begun = recorded ? time_.Now() : absl::Time();
    absl::Status status = mesh.Run(operation, number);
    lock.Lock();
    if (status.ok() && link_.has_value()) {
      while (failure_.ok() && lock.WaitUntil(work_changed_[index], least_end)) {
      }
    }
    if (recorded) {
      tracks_[index]->Add(
          {.name = operation.root.has_value() ? timeline_names::kBroadcast
                                              : timeline_names::kAllReduce,
           .begun = begun,
           .until = time_.Now(),
           .number =
               static_cast<int64_t>(operation.data.size() * sizeof(float))});
    }
    lane.running = false;
    if (status.ok()) {
      ++lane.completed;
    } else if (failure_.ok()) {
      failure_ = std::move(status);
      failed_here = true;
    }
    done_changed_.notify_all();
  }
  const bool failed = !failure_.ok();
  lock.Unlock();
  if (failed_here) Interrupt();
  if (failed) {
    mesh.GiveUp();
  } else {
    mesh.SayGoodbye();
  }
}

void MeshCollective::Watch() {
  NameThisThread("group watch");
  absl::Status loss = meshes_[kRanks]->AwaitLoss();
  if (loss.ok()) return;
  {
    const MutexLock lock(mutex_);
    // An operation that runs says itself why it failed: its timeout also closes
    // the connections.
    if (!lanes_[kRanks].running && failure_.ok()) failure_ = std::move(loss);
  }
  Interrupt();
}

absl::StatusOr<std::unique_ptr<Collective>> FormGroup(
    const GroupOptions& options, std::unique_ptr<Mesh> mesh) {
  SL_RETURN_IF_ERROR(
      CheckGroup(options.rank, options.world_size, options.store));
  SL_RETURN_IF_ERROR(CheckTimeout("timeout", options.timeout));
  SL_RETURN_IF_ERROR(CheckTimeout("connect_timeout", options.connect_timeout));
  std::unique_ptr<Mesh> sums;
  if (options.world_size == 1) {
    mesh = nullptr;
  } else {
    const std::string what =
        absl::StrCat("rendezvous of all-reduce group \"", options.group, "\"");
    SL_RETURN_IF_ERROR(Annotate(mesh->Join(options), what));
    if (options.sums != nullptr) {
      sums = options.sums();
      SL_RETURN_IF_ERROR(Annotate(sums->Join(options), what));
    }
  }
  return std::make_unique<MeshCollective>(options, std::move(mesh),
                                          std::move(sums));
}

}  // namespace slackline
