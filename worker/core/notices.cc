#include "worker/core/notices.h"

#include "absl/strings/str_cat.h"

namespace slackline {

bool Notices::OnAnswer(const MemberCore::CallResult& answer,
                       std::vector<std::string>* log) {
  if (calls_.erase(answer.call_id) == 0) return false;
  if (answer.reply.code() != wire::OK) {
    log->push_back(absl::StrCat("the coordinator refused a notice: ",
                                answer.reply.error()));
  }
  return true;
}

}  // namespace slackline
