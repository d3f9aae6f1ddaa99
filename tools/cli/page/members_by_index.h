// Lists of the page that have a place for each worker or server.
#pragma once

#include <nlohmann/json.hpp>
#include <utility>

namespace slackline {

inline constexpr int kMembersShownMax = 4096;

// `value` at place `index` of a list, which grows with nulls; nothing if there
// can be no member of that index.
inline void PutAt(int index, nlohmann::ordered_json value,
                  nlohmann::ordered_json* list) {
  if (index < 0 || index >= kMembersShownMax) return;
  while (static_cast<int>(list->size()) <= index) list->push_back(nullptr);
  (*list)[static_cast<size_t>(index)] = std::move(value);
}

}  // namespace slackline
