#include "tests/sim/job/sim_checkpoint.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/rng.h"
#include "common/status.h"

namespace slackline::sim {
namespace {

Payload CopyOf(const Payload& payload) {
  return Payload::Copy(payload.data(), payload.size());
}

}  // namespace

std::string SimCheckpoint::Name() const {
  return absl::StrCat("checkpoint ", manifest.run(), " at ", manifest.clock());
}

std::string ProgramAfter(int32_t rank, int64_t clock) {
  return absl::StrCat("worker ", rank, " after step ", clock);
}

checkpoint::Kept SimFolder::WriteKept(int32_t cut, int32_t rank,
                                      const std::string& bytes) {
  checkpoint::Kept kept;
  kept.set_rank(rank);
  kept.set_file(absl::StrCat("worker-", rank, ".state"));
  kept.set_bytes(static_cast<int64_t>(bytes.size()));
  programs_[cut][kept.file()] = bytes;
  return kept;
}

checkpoint::Part SimFolder::Write(int32_t cut, const std::string& file,
                                  const std::vector<ShardState>& shards) {
  Part part;
  part.said.set_shards(static_cast<int32_t>(shards.size()));
  if (shards.empty()) return part.said;  // There is no file.
  for (const ShardState& shard : shards) {
    ShardState& copy = part.shards.emplace_back(shard);
    copy.values = CopyOf(shard.values);
    for (Payload& slot : copy.slots) slot = CopyOf(slot);
    if (copy.turns.has_value()) {
      for (Payload& tensor : copy.turns->tensors) tensor = CopyOf(tensor);
    }
    part.said.set_bytes(
        part.said.bytes() +
        static_cast<int64_t>(shard.values.size() * (1 + shard.slots.size())));
  }
  part.said.set_file(file);
  part.said.set_header_hash(Mix64(++written_));
  return (parts_[cut][file] = std::move(part)).said;
}

absl::StatusOr<std::shared_ptr<const SimCheckpoint>> SimFolder::Complete(
    int32_t cut, const checkpoint::Manifest& manifest) {
  const auto parts = parts_.find(cut);
  SimCheckpoint made;
  made.manifest = manifest;
  for (const checkpoint::Part& said : manifest.part()) {
    if (said.shards() == 0) continue;
    const Part* found = nullptr;
    if (parts != parts_.end() && parts->second.count(said.file()) > 0)
      found = &parts->second.at(said.file());
    if (found == nullptr ||
        found->said.SerializeAsString() != said.SerializeAsString()) {
      return absl::NotFoundError(absl::StrCat(
          "part { ", said.ShortDebugString(), " } of cut ", cut,
          found == nullptr
              ? " was never written"
              : absl::StrCat(" is { ", found->said.ShortDebugString(), " }")));
    }
    made.shards.insert(made.shards.end(), found->shards.begin(),
                       found->shards.end());
  }
  for (const checkpoint::Kept& kept : manifest.kept()) {
    const auto found = programs_[cut].find(kept.file());
    if (found == programs_[cut].end() ||
        !made.programs.emplace(kept.rank(), found->second).second) {
      return absl::NotFoundError(
          absl::StrCat("state { ", kept.ShortDebugString(), " } of cut ", cut,
                       " was never written, or there are two of its rank"));
    }
  }
  programs_.erase(cut);
  if (parts != parts_.end()) parts_.erase(parts);
  return completed_.emplace_back(
      std::make_shared<const SimCheckpoint>(std::move(made)));
}

absl::StatusOr<ShardState> SimStoredShards::Read(const std::string& table,
                                                 const Region& region,
                                                 const TensorForm& form) const {
  ShardState state;
  state.table = table;
  state.region = region;
  // Of values, slots, and those of turns.
  std::vector<std::vector<TensorForm::Piece>> pieces;
  size_t slots = 0;
  RunningRmsOfParts rms;
  TurnsOfPieces turns;
  int64_t read = 0;
  for (const ShardState& stored : checkpoint_->shards) {
    const int64_t both = region.Overlap(stored.region).size();
    if (stored.table != table || both <= 0) continue;
    SL_RETURN_IF_ERROR(turns.Add(
        stored.turns.has_value() ? &stored.turns->turns : nullptr, both));
    std::vector<Payload> sources = {stored.values};
    sources.insert(sources.end(), stored.slots.begin(), stored.slots.end());
    if (stored.turns.has_value()) {
      sources.insert(sources.end(), stored.turns->tensors.begin(),
                     stored.turns->tensors.end());
    }
    slots = stored.slots.size();
    pieces.resize(sources.size());
    for (size_t t = 0; t < sources.size(); ++t) {
      const Payload& source = sources[t];
      pieces[t].push_back(
          {.region = stored.region,
           .bytes = source.size(),
           .read = [source](size_t offset, absl::Span<std::byte> to) {
             std::memcpy(to.data(), source.data() + offset, to.size());
             return absl::OkStatus();
           }});
    }
    state.version = std::max(state.version, stored.version);
    rms.Add(stored.running_rms, both);
    read += both;
  }
  if (read != region.size()) {
    return absl::NotFoundError(absl::StrCat("of ", table, region.Text(), " ",
                                            read, " elements are there"));
  }
  state.running_rms = rms.Whole();
  std::vector<Payload> tensors;
  for (std::vector<TensorForm::Piece>& of_tensor : pieces) {
    absl::c_sort(of_tensor, [](const auto& a, const auto& b) {
      return a.region < b.region;
    });
    SL_ASSIGN_OR_RETURN(tensors.emplace_back(), form.Join(region, of_tensor));
  }
  state.values = tensors.front();
  const auto end_of_slots = tensors.begin() + 1 + static_cast<ptrdiff_t>(slots);
  state.slots.assign(tensors.begin() + 1, end_of_slots);
  if (std::optional<wire::Turns> whole = turns.Whole(); whole.has_value()) {
    state.turns = StoredTurns{.turns = *std::move(whole),
                              .tensors = {end_of_slots, tensors.end()}};
  }
  return state;
}

}  // namespace slackline::sim
