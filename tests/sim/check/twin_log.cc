#include "tests/sim/check/twin_log.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace slackline::sim {

std::string Name(const LogPosition& at) {
  return absl::StrCat("index ", at.index, " of term ", at.term);
}

void LogState(ShardTwin& twin, uint64_t index, bool exact) {
  ShardTwin::Logged& logged = twin.log[index];
  logged.state = twin;
  logged.version = twin.versions.size() - 1;
  logged.exact = exact;
}

void BeginLogging(ShardTwin& twin, const View& view, const LogPosition& after,
                  Findings* findings) {
  if (after.index < twin.index || after.index > twin.index + 100'000) {
    return findings->Report(Invariant::kCopies,
                            absl::StrCat(twin.name, " is at ", Name(after),
                                         " after index ", twin.index));
  }
  const uint64_t newest = twin.terms.empty() ? 0 : twin.terms.rbegin()->first;
  if (!twin.terms.empty() && after.term < newest) {
    findings->Report(Invariant::kCopies,
                     absl::StrCat(twin.name, " is at ", Name(after),
                                  " after term ", newest));
  }
  // Before it had an owner it was of a term that tells who has founded the job.
  if (twin.log.empty()) {
    const auto splits = static_cast<uint64_t>(view.proto().split_size());
    twin.terms.emplace(twin.participants.size() + (splits << 16), 0);
  }
  twin.terms.try_emplace(after.term, twin.index);
  // What a view brings has no trace: workers that leave, and splits.
  if (twin.log.empty()) LogState(twin, twin.index, /*exact=*/true);
  for (uint64_t at = twin.index + 1; at < after.index; ++at)
    LogState(twin, at, /*exact=*/false);
}

void EndLogging(ShardTwin& twin, const LogPosition& after) {
  twin.index = after.index;
  LogState(twin, after.index, /*exact=*/true);
}

bool IsOnLine(const ShardTwin& twin, const LogPosition& at) {
  const auto term = twin.terms.find(at.term);
  if (term == twin.terms.end() || at.index < term->second) return false;
  const auto next = std::next(term);
  return at.index <= (next == twin.terms.end() ? twin.index : next->second);
}

std::shared_ptr<const ShardTwin> TwinAt(const ShardTwin& twin,
                                        const ShardRange& range,
                                        const LogPosition& at) {
  const auto fits = [&](const ShardTwin& was) {
    return was.range.region.begin() == range.region.begin() &&
           was.range.region.end() == range.region.end() && IsOnLine(was, at);
  };
  if (fits(twin)) return std::make_shared<const ShardTwin>(twin);
  for (auto was = twin.earlier.rbegin(); was != twin.earlier.rend(); ++was) {
    if (fits(**was)) return *was;
  }
  // Where a term begins the shard is what it was at the end of the one before,
  // and perhaps split in two right after that.
  const auto term = twin.terms.find(at.term);
  if (term == twin.terms.end() || term == twin.terms.begin() ||
      at.index != term->second) {
    return nullptr;
  }
  return TwinAt(twin, range,
                {.term = std::prev(term)->first, .index = at.index});
}

std::shared_ptr<const ShardTwin> CutOnTheWay(const ShardTwin& twin,
                                             const View& view,
                                             const ShardRange& range,
                                             const LogPosition& at) {
  for (auto was = twin.earlier.rbegin(); was != twin.earlier.rend(); ++was) {
    const ShardTwin& whole = **was;
    if (whole.range.region.begin() != range.region.begin() ||
        whole.range.region.end() <= range.region.end() ||
        !IsOnLine(whole, {.term = at.term, .index = whole.index})) {
      continue;
    }
    const auto splits =
        std::count_if(view.proto().split().begin(), view.proto().split().end(),
                      [&](const wire::Split& split) {
                        return ShardId{split.shard()} == range.shard &&
                               split.at() >= range.region.end() &&
                               split.at() < whole.range.region.end();
                      });
    if (at.index == whole.index + static_cast<uint64_t>(splits)) return *was;
  }
  return nullptr;
}

bool HasFollowedTheReplaced(const ShardTwin& twin, const LogPosition& at) {
  const auto later = twin.terms.upper_bound(at.term);
  return later != twin.terms.end() && at.index > later->second &&
         twin.terms.count(at.term) > 0;
}

std::shared_ptr<const ShardTwin> AtFirst(const ShardTwin& twin) {
  return twin.earlier.empty() ? std::make_shared<const ShardTwin>(twin)
                              : twin.earlier.front();
}

void Rewind(ShardTwin& twin, uint64_t index) {
  auto at = twin.log.upper_bound(index);
  if (at != twin.log.begin()) --at;
  static_cast<TwinState&>(twin) = at->second.state;
  const Version version = at->second.version;
  twin.versions.resize(version + 1);
  twin.slots.resize(version + 1);
  twin.updates.resize(version);
  twin.log.erase(twin.log.upper_bound(index), twin.log.end());
  twin.index = index;
  std::erase_if(twin.terms,
                [&](const auto& term) { return term.second > index; });
}

}  // namespace slackline::sim
