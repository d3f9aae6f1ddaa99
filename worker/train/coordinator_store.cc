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
  wire::Call call;
  call.mutable_store_get()->set_key(key);
  SL_ASSIGN_OR_RETURN(const MemberCore::CallResult result,
                      client_->Call(std::move(call), Payload(), wait_max));
  return std::string(reinterpret_cast<const char*>(result.value.data()),
                     result.value.size());
}

}  // namespace slackline
