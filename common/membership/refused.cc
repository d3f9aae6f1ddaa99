#include "common/membership/refused.h"

#include "absl/strings/str_cat.h"

namespace slackline {
namespace {

constexpr char kSameKey[] =
    "All processes of a job need the same key: copy the file that server 0 has "
    "(~/.config/slackline/key, or that of its --key) to this host, and make "
    "sure that only you can read it";

}  // namespace

absl::Status RefusedStatus(const std::string& endpoint) {
  return absl::PermissionDeniedError(absl::StrCat(
      "what listens at ", endpoint,
      " refuses this process: it has another key, or one of the two has "
      "insecure: true and the other has not. ",
      kSameKey));
}

std::string DroppedText(const std::string& endpoint) {
  return absl::StrCat("what listens at ", endpoint,
                      " ends each connection at once: it has another key than "
                      "this process, or it is something in between that finds "
                      "nobody behind it. ",
                      kSameKey);
}

}  // namespace slackline
