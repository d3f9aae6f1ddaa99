#include "worker/train/coordinator_store.h"

#include "common/status.h"

namespace slackline {
namespace {
constexpr absl::Duration kPutWaitMax = absl::Seconds(30);
}  // namespace

absl::Status CoordinatorStore::Put(const std::string& key, std::string value) {
  wire::Call call;
  call.mutable_store_put()->set_key(key);
  return client_
      ->Call(std::move(call), Payload::Copy(value.data(), value.size()),
             kPutWaitMax)
      .status();
}

absl::StatusOr<std::string> CoordinatorStore::Get(const std::string& key,
                                                  absl::Duration wait_max) {
  std::shared_ptr<const PsClient::PendingCall> pending;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::shared_ptr<const PsClient::PendingCall>& known = pending_[key];
    if (known == nullptr) {
      wire::Call call;
      call.mutable_store_get()->set_key(key);
      known = client_->StartCall(std::move(call), Payload());
    }
    pending = known;
  }
  const absl::StatusOr<MemberCore::CallResult> waited =
      client_->WaitCall(*pending, wait_max);
  if (absl::IsDeadlineExceeded(waited.status())) return waited.status();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    pending_.erase(key);
  }
  SL_RETURN_IF_ERROR(waited.status());
  const MemberCore::CallResult& result = *waited;
  return std::string(reinterpret_cast<const char*>(result.value.data()),
                     result.value.size());
}

}  // namespace slackline
