#include "server/coordinator/group_store.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace slackline {

std::string GroupStore::WhyRefused(uint64_t group,
                                   const std::string& key) const {
  if (group != group_) {
    return absl::StrCat("group ", group, " is over; the present one is ",
                        group_);
  }
  if (key.size() > kKeyBytesMax) {
    return absl::StrCat("the key has ", key.size(), " bytes; at most ",
                        kKeyBytesMax, " are allowed");
  }
  return "";
}

void GroupStore::Put(const Caller& caller, uint64_t group,
                     const std::string& key, const Payload& value,
                     std::vector<Answer>* answers) {
  Answer answer{.to = caller, .code = wire::OK, .error = {}, .value = {}};
  answer.error = WhyRefused(group, key);
  if (answer.error.empty() && values_.count(key) == 0) {
    const size_t bytes = key.size() + value.size();
    if (bytes > options_.bytes_max - bytes_) {
      answer.error =
          absl::StrCat("the rendezvous store holds ", bytes_, " bytes, ", bytes,
                       " more exceed its bound of ", options_.bytes_max);
    } else {
      bytes_ += bytes;
      values_[key] = value;
    }
  }
  if (!answer.error.empty()) answer.code = wire::REJECTED;
  const bool stored = answer.code == wire::OK;
  answers->push_back(std::move(answer));
  const auto waiting = gets_.find(key);
  if (!stored || waiting == gets_.end()) return;
  for (const Caller& get : waiting->second) {
    answers->push_back({.to = get,
                        .code = wire::OK,
                        .error = {},
                        .value = value,
                        .has_value = true});
  }
  waiting_ -= static_cast<int>(waiting->second.size());
  gets_.erase(waiting);
}

void GroupStore::Get(const Caller& caller, uint64_t group,
                     const std::string& key, std::vector<Answer>* answers) {
  Answer answer{.to = caller, .code = wire::OK, .error = {}, .value = {}};
  answer.error = WhyRefused(group, key);
  if (!answer.error.empty()) {
    answer.code = wire::REJECTED;
    return answers->push_back(std::move(answer));
  }
  const auto found = values_.find(key);
  if (found != values_.end()) {
    answer.value = found->second;
    answer.has_value = true;
    return answers->push_back(std::move(answer));
  }
  std::vector<Caller>& waiting = gets_[key];
  const bool repeated =
      std::any_of(waiting.begin(), waiting.end(), [&](const Caller& other) {
        return other.peer == caller.peer && other.call_id == caller.call_id;
      });
  if (repeated) return;
  if (waiting_ >= options_.waiting_max) {
    if (waiting.empty()) gets_.erase(key);
    answer.code = wire::RETRY;
    answer.error = "too many calls wait already";
    return answers->push_back(std::move(answer));
  }
  waiting.push_back(caller);
  ++waiting_;
}

void GroupStore::BeginGroup(uint64_t group, std::vector<Answer>* answers) {
  if (group == group_) return;
  group_ = group;
  values_.clear();
  bytes_ = 0;
  for (auto& [key, waiting] : gets_) {
    for (const Caller& get : waiting) {
      answers->push_back({.to = get,
                          .code = wire::REJECTED,
                          .error = absl::StrCat(
                              "the group is over; the present one is ", group_),
                          .value = {}});
    }
  }
  gets_.clear();
  waiting_ = 0;
}

void GroupStore::Forget(Incarnation incarnation) {
  for (auto entry = gets_.begin(); entry != gets_.end();) {
    waiting_ -= static_cast<int>(
        std::erase_if(entry->second, [&](const Caller& caller) {
          return caller.incarnation == incarnation;
        }));
    entry = entry->second.empty() ? gets_.erase(entry) : std::next(entry);
  }
}

}  // namespace slackline
