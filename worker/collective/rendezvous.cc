#include "worker/collective/rendezvous.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status.h"
#include "common/time/time_source.h"

namespace slackline {

Rendezvous::Rendezvous(const Options& options)
    : options_(options), deadline_(TimeSource().Now() + options.time_max) {}

absl::Status Rendezvous::Ask() const {
  return options_.keep_trying ? options_.keep_trying() : absl::OkStatus();
}

absl::Duration Rendezvous::Slice() const {
  constexpr absl::Duration kSliceMax = absl::Milliseconds(40);
  return std::clamp(deadline_ - TimeSource().Now(), absl::ZeroDuration(),
                    kSliceMax);
}

std::string Rendezvous::Self() const {
  return absl::StrCat("rank ", static_cast<int>(options_.rank), " of ",
                      options_.world_size);
}

std::string Rendezvous::KeyOf(int rank) const {
  return absl::StrCat(options_.group, "/", rank);
}

absl::StatusOr<std::vector<std::string>> Rendezvous::Exchange(
    std::string value) const {
  const int self = static_cast<int>(options_.rank);
  SL_RETURN_IF_ERROR(
      Annotate(options_.store->Put(KeyOf(self), std::move(value)),
               absl::StrCat("store the value of ", Self())));
  std::vector<std::string> values(options_.world_size);
  std::vector<int> missing;
  for (int i = 0; i < options_.world_size; ++i) {
    if (i == self) continue;
    absl::StatusOr<std::string> found = Get(KeyOf(i));
    if (found.ok()) {
      values[i] = *std::move(found);
    } else if (absl::IsDeadlineExceeded(found.status()) && Over()) {
      missing.push_back(i);  // Look for the others too, to name them all.
    } else {
      return Annotate(found.status(),
                      absl::StrCat(Self(), " waited for rank ", i));
    }
  }
  if (!missing.empty()) return Missing(missing);
  return values;
}

absl::Status Rendezvous::Put(const std::string& name, std::string value) const {
  return Annotate(options_.store->Put(absl::StrCat(options_.group, "/", name),
                                      std::move(value)),
                  absl::StrCat("store the ", name, " on ", Self()));
}

absl::StatusOr<std::string> Rendezvous::Await(const std::string& name,
                                              Rank root) const {
  absl::StatusOr<std::string> found =
      Get(absl::StrCat(options_.group, "/", name));
  if (!found.ok() && absl::IsDeadlineExceeded(found.status()) && Over()) {
    return Missing({static_cast<int>(root)});
  }
  return found;
}

absl::StatusOr<std::string> Rendezvous::Get(const std::string& key) const {
  for (;;) {
    SL_RETURN_IF_ERROR(Ask());
    const bool last_look = Over();
    absl::StatusOr<std::string> value = options_.store->Get(key, Slice());
    if (value.ok() || !absl::IsDeadlineExceeded(value.status()) || last_look) {
      return value;
    }
  }
}

absl::Status Rendezvous::Missing(const std::vector<int>& ranks) const {
  return absl::DeadlineExceededError(absl::StrCat(
      RanksText(ranks), " of ", options_.world_size, " did not arrive within ",
      absl::ToInt64Milliseconds(options_.time_max), " ms; check that ",
      ranks.size() == 1 ? "it runs" : "they run",
      " and can reach the coordinator"));
}

std::string RanksText(absl::Span<const int> ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ",
                      absl::StrJoin(ranks, ", "));
}

absl::Status CheckTimeout(const char* name, absl::Duration timeout) {
  if (timeout >= absl::Milliseconds(1) && timeout <= absl::Hours(24)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(name, ": value ",
                                                 absl::FormatDuration(timeout),
                                                 " is outside [1 ms, 24 h]"));
}

absl::Status CheckGroup(Rank rank, int32_t world_size,
                        const RendezvousStore* store) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("world_size: value is too small (", world_size,
                     "), at least 1 is required"));
  }
  const auto index = static_cast<int32_t>(rank);
  if (index < 0 || index >= world_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rank: value ", index, " is outside [0, ", world_size, ")"));
  }
  if (world_size > 1 && store == nullptr) {
    return absl::InvalidArgumentError(
        "store: it is missing, more than one rank cannot find each other "
        "without one");
  }
  return absl::OkStatus();
}

}  // namespace slackline
