// The lists of members in views: sorted, servers by index and workers by rank.
// Most lists have no gaps, and a member is where its number says; else it is
// looked up by halving.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "proto/view.pb.h"

namespace slackline {

inline int32_t MemberKey(const wire::ServerMember& server) {
  return server.index();
}
inline int32_t MemberKey(const wire::WorkerMember& worker) {
  return worker.rank();
}

// `List` is a repeated field of one of the two, below as well. The first member
// whose key is not smaller.
template <typename List>
auto MemberPlace(List& list, int32_t key) {
  return std::lower_bound(
      list.begin(), list.end(), key,
      [](const auto& member, int32_t k) { return MemberKey(member) < k; });
}

// nullptr if there is none.
template <typename List>
auto FindMember(List& list, int32_t key) -> decltype(&*list.begin()) {
  const auto guess = list.begin() + std::clamp(key, 0, list.size());
  if (guess != list.end() && MemberKey(*guess) == key) return &*guess;
  const auto at = MemberPlace(list, key);
  return at != list.end() && MemberKey(*at) == key ? &*at : nullptr;
}

// A new one, or in the place of the one that is there.
template <typename List, typename Member>
void PutMember(Member member, List* list) {
  if (auto* const present = FindMember(*list, MemberKey(member));
      present != nullptr) {
    *present = std::move(member);
    return;
  }
  const int place =
      static_cast<int>(MemberPlace(*list, MemberKey(member)) - list->begin());
  *list->Add() = std::move(member);
  for (int last = list->size() - 1; last > place; --last)
    list->SwapElements(last, last - 1);
}

// False if there was none.
template <typename List>
bool RemoveMember(int32_t key, List* list) {
  const auto at = MemberPlace(*list, key);
  if (at == list->end() || MemberKey(*at) != key) return false;
  list->erase(at);
  return true;
}

}  // namespace slackline
