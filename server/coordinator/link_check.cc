#include "server/coordinator/link_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/endpoint.h"
#include "common/status.h"

namespace slackline {
namespace {

// Of one report; members send fewer.
constexpr int kUnreachedMax = 1024;

}  // namespace

void LinkCheck::Begin(absl::Time awake) {
  SL_CHECK(!members_.all().empty(), "a round without members");
  // A greater one than any before, whichever coordinator had that.
  round_ = members_.all().rbegin()->first;
  since_ = awake;
  told_ = false;
  left_.clear();
}

void LinkCheck::Stop() {
  round_ = 0;
  left_.clear();
}

void LinkCheck::PutRound(const Member& member,
                         wire::HeartbeatReply* reply) const {
  if (!under_way() || left_.count(member.incarnation) > 0) return;
  wire::TryLinks& links = *reply->mutable_try_links();
  links.set_round(round_);
  for (const auto& [index, server] : members_.servers()) {
    if (server != &member) *links.add_server() = ServerOf(*server);
  }
  if (!member.worker_role() || member.join.door().empty()) return;
  for (const auto& [rank, worker] : members_.workers()) {
    if (worker == &member || worker->join.door().empty()) continue;
    wire::Door& door = *links.add_worker();
    door.set_rank(rank);
    door.set_endpoint(worker->join.door());
  }
}

const Member* LinkCheck::At(const Place& place) const {
  const auto& places = place.first ? members_.workers() : members_.servers();
  const auto found = places.find(place.second);
  return found == places.end() ? nullptr : found->second;
}

void LinkCheck::OnReport(const Member& member, const wire::LinksTried& tried) {
  if (!under_way() || tried.round() != round_) return;
  std::map<Place, int32_t>& left = left_[member.incarnation];
  left.clear();
  const int count = std::min(tried.unreached_size(), kUnreachedMax);
  for (int i = 0; i < count; ++i) {
    const wire::Unreached& of = tried.unreached(i);
    const Place place{of.worker(), of.index()};
    const Member* const other = At(place);
    if (other == nullptr || other == &member) continue;
    if (!of.worker() &&
        (of.thread() < 0 || of.thread() >= other->join.thread_size())) {
      continue;
    }
    left.try_emplace(place, of.thread());
  }
}

bool LinkCheck::Needs(const Member& member, const Place& other) const {
  return member.worker_role() || other.first ||
         options_.servers_need_each_other;
}

bool LinkCheck::Complete(absl::Time awake) const {
  const bool only_needed = awake - since_ > options_.lease;
  for (const auto& [incarnation, member] : members_.all()) {
    const auto said = left_.find(incarnation);
    if (said == left_.end()) return false;
    for (const auto& [place, thread] : said->second) {
      if (!only_needed || Needs(member, place)) return false;
    }
  }
  return true;
}

std::vector<std::string> LinkCheck::Left(absl::Time awake) const {
  std::vector<std::string> sentences;
  if (!under_way() || awake - since_ <= options_.lease) return sentences;
  for (const auto& [incarnation, member] : members_.all()) {
    const auto said = left_.find(incarnation);
    if (said == left_.end()) {
      sentences.push_back(absl::StrCat(Describe(member),
                                       " has not said whom it can connect to"));
      continue;
    }
    for (const auto& [place, thread] : said->second) {
      const Member* const other = At(place);
      if (other == nullptr) continue;
      sentences.push_back(absl::StrCat(
          Describe(member), " cannot connect to ", Describe(*other), " at ",
          place.first ? other->join.door()
                      : NetworkEndpoint(other->join.thread(thread)),
          Needs(member, place) ? "" : ", so no shard can move between them"));
    }
  }
  return sentences;
}

std::vector<std::string> LinkCheck::TakeNews(absl::Time awake) {
  std::vector<std::string> news = Left(awake);
  told_ |= under_way() && awake - since_ > options_.lease;
  std::erase_if(news, [&](const std::string& sentence) {
    return !said_.insert(sentence).second;
  });
  return news;
}

absl::Time LinkCheck::NextNews() const {
  return under_way() && !told_ ? since_ + options_.lease
                               : absl::InfiniteFuture();
}

}  // namespace slackline
