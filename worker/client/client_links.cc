#include "worker/client/client_links.h"

#include "worker/client/shard_tensors.h"

namespace slackline {

ClientLinks::Entry& ClientLinks::EntryTo(Owner owner) {
  const auto known = links_.find(owner);
  if (known != links_.end()) return known->second;
  const bool by_socket = options_.by_socket != nullptr &&
                         options_.by_socket(routes_.view(), owner);
  return links_
      .emplace(owner, Entry{.link = ClientLink(owner, by_socket, options_)})
      .first->second;
}

ClientLink& ClientLinks::Touch(Owner owner) {
  Entry& entry = EntryTo(owner);
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

void ClientLinks::PullAll(const PullUnit& like, const ClientParts& parts) {
  std::map<Owner, PullUnit> open;  // The messages that are being filled.
  const auto close = [&](Owner owner, PullUnit& unit) {
    if (unit.shards.empty()) return;
    unit.id = parts.numbers.Next();
    Touch(owner).Queue(std::exchange(unit, like.Sibling()));
  };
  const View& view = routes_.view();
  for (int32_t shard = 0; shard < view.shard_count(); ++shard) {
    const Owner owner = routes_.OwnerOf(shard);
    PullUnit& unit = open.try_emplace(owner, like).first->second;
    unit.shards.push_back(shard);
    unit.bytes += AnswerBytes(view, shard, *like.asked);
    if (unit.bytes >= EntryTo(owner).link.message_bytes() ||
        unit.shards.size() >= options_.message_entries) {
      close(owner, unit);
    }
  }
  for (auto& [owner, unit] : open) close(owner, unit);
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
  for (auto& [owner, of_owner] : strays)
    Touch(owner).AddStrays(std::move(of_owner));
  PumpTouched(parts);
}

void ClientLinks::Split(const ShardSplit& split, ClientCounts& counts) {
  for (auto& [owner, entry] : links_) entry.link.Split(split, counts);
}

void ClientLinks::ForgetServersGone() {
  std::erase_if(links_, [&](const auto& item) {
    const auto& [owner, entry] = item;
    if (!entry.link.idle() || routes_.Has(owner)) return false;
    wakeups_.erase({entry.wakeup, owner});
    return true;
  });
}

}  // namespace slackline
