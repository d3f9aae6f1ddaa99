#include "worker/client/push_unit.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/io/state_hash.h"
#include "worker/client/shard_tensors.h"

namespace slackline {

PushEntry PushEntry::SplitAt(const ShardSplit& split) {
  PushEntry rest = *this;
  rest.shard = split.split_off;
  switch (kind) {
    case Kind::kAdvance:
      break;
    case Kind::kGradient: {
      auto [of_kept, of_rest] = PartsOf({values, code}, split);
      const auto become = [](PushEntry& entry, CodedGradient part,
                             const Region& region) {
        entry.values = std::move(part.bytes);
        entry.code = part.code;
        entry.elements = static_cast<size_t>(region.size());
      };
      become(*this, std::move(of_kept), split.of_kept);
      become(rest, std::move(of_rest), split.of_split_off);
      break;
    }
    case Kind::kInstallation: {
      rest.values = TakeRest(&values, split);
      for (size_t i = 0; i < slots.size(); ++i)
        rest.slots[i] = TakeRest(&slots[i], split);
      for (PushEntry* const part : {this, &rest})
        part->hash = StateHash(part->version, part->values, part->slots);
      break;
    }
  }
  return rest;
}

void PushUnit::Add(PushEntry entry, TableId table) {
  if (entry.kind != PushEntry::Kind::kGradient ||
      (gradients.has_value() && gradients->clock != entry.clock)) {
    gradients.reset();
  } else if (entries.empty()) {
    gradients = {.clock = entry.clock, .first = table, .last = table};
  } else if (gradients.has_value()) {
    gradients->first = std::min(gradients->first, table);
    gradients->last = std::max(gradients->last, table);
  }
  bytes += entry.bytes();
  entries.push_back(std::move(entry));
}

bool PushUnit::AcceptedIn(const PushSequences& sequences) const {
  return std::all_of(
      entries.begin(), entries.end(),
      [&](const PushEntry& entry) { return entry.AcceptedIn(sequences); });
}

bool PushUnit::IsNextIn(const PushSequences& sequences) const {
  std::map<int32_t, uint64_t> last;  // In the unit so far, by shard.
  for (const PushEntry& entry : entries) {
    if (entry.AcceptedIn(sequences)) continue;
    const uint64_t before =
        last.try_emplace(entry.shard, sequences.accepted(entry.shard))
            .first->second;
    if (entry.seq != before + 1) return false;
    last[entry.shard] = entry.seq;
  }
  return true;
}

void PushUnit::Refuse(int32_t shard, const PushSequences& sequences) {
  const auto first =
      std::find_if(entries.begin(), entries.end(), [&](const PushEntry& entry) {
        return entry.shard == shard && !entry.AcceptedIn(sequences);
      });
  if (first == entries.end()) return;
  if (sequences.accepted(shard) + 1 == first->seq) {
    state = State::kRefused;
  } else if (state == State::kSent) {
    state = State::kBehind;
  }
}

size_t PushUnit::SplitAt(const ShardSplit& split) {
  size_t before = 0;  // Bytes that the shard's entries had,
  size_t after = 0;   // and have with their parts.
  std::vector<PushEntry> parts;
  parts.reserve(entries.size());
  for (PushEntry& entry : entries) {
    if (entry.shard != split.kept) {
      parts.push_back(std::move(entry));
      continue;
    }
    before += entry.bytes();
    PushEntry rest = entry.SplitAt(split);
    after += entry.bytes() + rest.bytes();
    parts.push_back(std::move(entry));
    parts.push_back(std::move(rest));
  }
  entries = std::move(parts);
  bytes += after - before;
  return after - before;
}

}  // namespace slackline
