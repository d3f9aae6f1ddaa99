#include "worker/session/coordinator_store.h"

#include "common/status.h"

namespace slackline {
namespace {
constexpr absl::Duration kPutWaitMax = absl::Seconds(30);
}  // namespace

void CoordinatorStore::SetGroup(uint64_t group) {
  const MutexLock lock(mutex_);
  if (group == group_) return;
  group_ = group;
  for (const auto& [key, call] : pending_) loop_->ForgetCall(call);
  pending_.clear();
}

absl::Status CoordinatorStore::Put(const std::string& key, std::string value) {
  wire::Call call;
  call.mutable_store_put()->set_key(key);
  {
    const MutexLock lock(mutex_);
    call.mutable_store_put()->set_group(group_);
  }
  return loop_
      ->Call(std::move(call), Payload::Copy(value.data(), value.size()),
             kPutWaitMax)
      .status();
}

absl::StatusOr<std::string> CoordinatorStore::Get(const std::string& key,
                                                  absl::Duration wait_max) {
  uint64_t pending = 0;
  {
    const MutexLock lock(mutex_);
    uint64_t& known = pending_[key];
    if (known == 0) {
      wire::Call call;
      call.mutable_store_get()->set_key(key);
      call.mutable_store_get()->set_group(group_);
      known = loop_->StartCall(std::move(call), Payload());
    }
    pending = known;
  }
  const absl::StatusOr<MemberCore::CallResult> waited =
      loop_->WaitCall(pending, wait_max);
  if (absl::IsDeadlineExceeded(waited.status())) return waited.status();
  {
    const MutexLock lock(mutex_);
    pending_.erase(key);
  }
  SL_RETURN_IF_ERROR(waited.status());
  if (waited->values.empty()) return std::string();
  const Payload& value = waited->values.front();
  return std::string(reinterpret_cast<const char*>(value.data()), value.size());
}

}  // namespace slackline
