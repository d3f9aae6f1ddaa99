#include "worker/client/client_links.h"

namespace slackline {

ClientLinks::Entry& ClientLinks::EntryTo(Owner owner,
                                         const ClientOptions& options,
                                         const Routes& routes) {
  const auto known = links_.find(owner);
  if (known != links_.end()) return known->second;
  const bool by_socket =
      options.by_socket != nullptr && options.by_socket(routes.view(), owner);
  return links_
      .emplace(owner, Entry{.link = ClientLink(owner, by_socket, options)})
      .first->second;
}

ClientLink& ClientLinks::Touch(Owner owner, const ClientOptions& options,
                               const Routes& routes) {
  Entry& entry = EntryTo(owner, options, routes);
  Touch(entry);
  return entry.link;
}

ClientLink* ClientLinks::Find(Owner owner) {
  const auto at = links_.find(owner);
  return at == links_.end() ? nullptr : &at->second.link;
}

void ClientLinks::PumpTouched(const ClientParts& parts) {
  for (Entry* const entry : touched_) {
    entry->touched = false;
    entry->link.Pump(parts);
    SetWakeup(*entry);
  }
  touched_.clear();
}

void ClientLinks::SetWakeup(const ClientLink& link) {
  SetWakeup(links_.at(link.to()));
}

void ClientLinks::SetWakeup(Entry& entry) {
  const absl::Time next = entry.link.NextWakeup();
  if (next == entry.wakeup) return;
  const Owner owner = entry.link.to();
  wakeups_.erase({entry.wakeup, owner});
  entry.wakeup = next;
  if (next < absl::InfiniteFuture()) wakeups_.emplace(next, owner);
}

void ClientLinks::OnTick(const ClientParts& parts) {
  std::vector<Owner> due;
  for (const auto& [at, owner] : wakeups_) {
    if (at > parts.now) break;
    due.push_back(owner);
  }
  for (const Owner owner : due) {
    Entry& entry = links_.at(owner);
    entry.link.OnTick(parts);
    SetWakeup(entry);
  }
}

void ClientLinks::EndClock(const ClientParts& parts) {
  for (auto& [owner, entry] : links_) {
    if (entry.link.EndClock()) Touch(entry);
  }
  PumpTouched(parts);
}

void ClientLinks::ForgetPull(uint64_t pull_id, const ClientParts& parts) {
  for (auto& [owner, entry] : links_) {
    entry.link.ForgetPull(pull_id);
    Touch(entry);
  }
  PumpTouched(parts);
}

void ClientLinks::OnNewView(absl::Time soon) {
  for (auto& [owner, entry] : links_) {
    entry.link.OnNewView(soon);
    SetWakeup(entry);
  }
}

void ClientLinks::Reroute(const ClientParts& parts) {
  StraysByOwner strays;
  for (auto& [owner, entry] : links_) {
    Touch(entry);
    entry.link.TakeStrays(parts, &strays);
  }
  for (auto& [owner, of_owner] : strays) {
    Touch(owner, parts.options, parts.routes).AddStrays(std::move(of_owner));
  }
  PumpTouched(parts);
}

void ClientLinks::Split(const ShardSplit& split, ClientCounts& counts) {
  for (auto& [owner, entry] : links_) entry.link.Split(split, counts);
}

void ClientLinks::ForgetServersGone(const Routes& routes) {
  std::erase_if(links_, [&](const auto& item) {
    const auto& [owner, entry] = item;
    if (!entry.link.idle() || routes.Has(owner)) return false;
    wakeups_.erase({entry.wakeup, owner});
    return true;
  });
}

}  // namespace slackline
