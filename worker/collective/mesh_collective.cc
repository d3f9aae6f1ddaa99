#include "worker/collective/mesh_collective.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status.h"
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
                               std::unique_ptr<Mesh> mesh)
    : rank_(options.rank),
      world_size_(options.world_size),
      link_(options.link),
      mesh_(std::move(mesh)) {
  if (mesh_ == nullptr) return;
  operations_ = std::thread([this] { Run(); });
  watcher_ = std::thread([this] { Watch(); });
}

MeshCollective::~MeshCollective() {
  if (mesh_ == nullptr) return;
  bool idle;
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    idle = completed_ == started_;
  }
  work_changed_.notify_one();
  if (!idle) Abort(absl::CancelledError("the collective is being destroyed"));
  operations_.join();
  mesh_->EndWatch();
  watcher_.join();
}

Collective::Ticket MeshCollective::AllReduceAsync(absl::Span<float> data) {
  return Start({.data = data, .root = std::nullopt});
}

Collective::Ticket MeshCollective::BroadcastAsync(absl::Span<float> data,
                                                  Rank root) {
  const auto index = static_cast<int32_t>(root);
  SL_CHECK(index >= 0 && index < world_size_,
           absl::StrCat("broadcast from rank ", index, " of ", world_size_));
  return Start({.data = data, .root = root});
}

Collective::Ticket MeshCollective::Start(const Operation& operation) {
  const MutexLock lock(mutex_);
  const auto ticket = static_cast<Ticket>(started_++);
  if (mesh_ == nullptr) {
    completed_ = started_;
  } else if (failure_.ok()) {
    queue_.push_back(operation);
    work_changed_.notify_one();
  }
  return ticket;
}

absl::Status MeshCollective::Wait(Ticket ticket) {
  const auto number = static_cast<int64_t>(ticket);
  MutexLock lock(mutex_);
  SL_CHECK(number >= 0 && number < started_,
           absl::StrCat("wait for operation ", number, " of ", started_));
  while (failure_.ok() ? number >= completed_ : running_) {
    lock.Wait(done_changed_);
  }
  return failure_;
}

void MeshCollective::Abort(absl::Status reason) {
  SL_CHECK(!reason.ok(), "a collective cannot be aborted with status OK");
  {
    const MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    failure_ = std::move(reason);
  }
  work_changed_.notify_one();
  done_changed_.notify_all();
  if (mesh_ != nullptr) mesh_->Interrupt();
}

absl::Duration MeshCollective::LeastTime(const Operation& operation) const {
  if (!link_.has_value() || operation.root.has_value())
    return absl::ZeroDuration();
  return RingTime(*link_, operation.data.size() * sizeof(float), world_size_);
}

void MeshCollective::Run() {
  if (absl::Status status = mesh_->BeginWatch(); !status.ok()) {
    Abort(std::move(status));
  }
  MutexLock lock(mutex_);
  for (;;) {
    while (queue_.empty() && !stopping_ && failure_.ok()) {
      lock.Wait(work_changed_);
    }
    if (!failure_.ok() || queue_.empty()) break;
    const Operation operation = queue_.front();
    queue_.pop_front();
    running_ = true;
    const int64_t number = completed_;
    const auto least_end = SteadyDeadline(LeastTime(operation));
    lock.Unlock();
    absl::Status status = mesh_->Run(operation, number);
    lock.Lock();
    if (status.ok() && link_.has_value()) {
      while (failure_.ok() && lock.WaitUntil(work_changed_, least_end)) {
      }
    }
    running_ = false;
    if (status.ok()) {
      ++completed_;
    } else if (failure_.ok()) {
      failure_ = std::move(status);
    }
    done_changed_.notify_all();
  }
  const bool failed = !failure_.ok();
  lock.Unlock();
  if (failed) {
    mesh_->GiveUp();
  } else {
    mesh_->SayGoodbye();
  }
}

void MeshCollective::Watch() {
  absl::Status loss = mesh_->AwaitLoss();
  if (loss.ok()) return;
  {
    const MutexLock lock(mutex_);
    // An operation that runs says itself why it failed: its timeout also closes
    // the connections.
    if (!running_ && failure_.ok()) failure_ = std::move(loss);
  }
  work_changed_.notify_one();
  done_changed_.notify_all();
  mesh_->Interrupt();
}

absl::StatusOr<std::unique_ptr<Collective>> FormGroup(
    const GroupOptions& options, std::unique_ptr<Mesh> mesh) {
  SL_RETURN_IF_ERROR(
      CheckGroup(options.rank, options.world_size, options.store));
  SL_RETURN_IF_ERROR(CheckTimeout("timeout", options.timeout));
  SL_RETURN_IF_ERROR(CheckTimeout("connect_timeout", options.connect_timeout));
  if (options.world_size == 1) {
    mesh = nullptr;
  } else {
    SL_RETURN_IF_ERROR(Annotate(
        mesh->Join(options), absl::StrCat("rendezvous of all-reduce group \"",
                                          options.group, "\"")));
  }
  return std::make_unique<MeshCollective>(options, std::move(mesh));
}

}  // namespace slackline
