#include "common/membership/link_report.h"

#include "absl/strings/str_cat.h"
#include "common/endpoint.h"
#include "common/time/duration_text.h"

namespace slackline {

bool LinkReport::OnTryLinks(const wire::TryLinks& links, absl::Time now) {
  if (links_.has_value() && links_->round() >= links.round()) return false;
  links_ = links;
  since_ = now;
  tried_.reset();
  said_ = false;
  return true;
}

bool LinkReport::OnTried(const wire::LinksTried& tried) {
  if (!links_.has_value() || tried.round() != links_->round()) return false;
  tried_ = tried;
  return true;
}

void LinkReport::SayWhomItMisses(absl::Time now, absl::Duration lease,
                                 std::vector<std::string>* log) {
  if (!tried_.has_value() || said_ || now - since_ <= lease) return;
  said_ = true;
  for (const wire::Unreached& of : tried_->unreached()) {
    std::string endpoint;
    for (const wire::ServerMember& server : links_->server()) {
      if (!of.worker() && server.index() == of.index() &&
          of.thread() < server.thread_size()) {
        endpoint = NetworkEndpoint(server.thread(of.thread()));
      }
    }
    for (const wire::Door& door : links_->worker()) {
      if (of.worker() && door.rank() == of.index()) endpoint = door.endpoint();
    }
    log->push_back(absl::StrCat(
        "cannot connect to ", of.worker() ? "worker " : "server ", of.index(),
        " at ", endpoint, " for ", DurationText(now - since_),
        ", and tries on; is there a firewall between?"));
  }
}

}  // namespace slackline
