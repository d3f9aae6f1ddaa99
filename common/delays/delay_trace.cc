#include "common/delays/delay_trace.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/block/bounds.h"
#include "common/rng.h"
#include "common/shortened.h"
#include "common/status.h"

namespace slackline {
namespace {

constexpr int64_t kDelayMax = 100000;  // Refuses slips of the keyboard.
constexpr int64_t kShardMax = 10000000;
constexpr int64_t kVersionMax = kStepsMax * kWorkersMax;
constexpr size_t kShownBytes = 40;  // Of a value that is refused.

int64_t DrawDelay(const SyntheticDelays& delays, bool last_worker, Rng& rng) {
  switch (delays.kind) {
    case SyntheticDelays::Kind::kConstant:
      return delays.clocks;
    case SyntheticDelays::Kind::kUniform:
      return rng.Between(0, delays.clocks);
    case SyntheticDelays::Kind::kGeometric: {
      if (delays.clocks == 0) return 0;
      // P(d) = p (1 - p)^d has mean (1 - p) / p.
      const double mean = static_cast<double>(delays.clocks) / 4;
      const double stay = mean / (1 + mean);
      const double drawn =
          std::floor(std::log1p(-rng.Uniform()) / std::log(stay));
      return static_cast<int64_t>(
          std::min(drawn, static_cast<double>(delays.clocks)));
    }
    case SyntheticDelays::Kind::kStraggler:
      return last_worker ? delays.clocks : 0;
  }
  return 0;
}

// That field, or element of a list, as a whole number in [low, high].
absl::StatusOr<int64_t> WholeNumber(const nlohmann::json& value,
                                    const std::string& field, int64_t low,
                                    int64_t high) {
  // The two kinds of whole numbers in JSON; beyond both it is a fraction.
  const bool fits = value.is_number_unsigned()
                        ? value.get<uint64_t>() <= INT64_MAX
                        : value.is_number_integer();
  const int64_t number = fits ? value.get<int64_t>() : 0;
  if (fits && number >= low && number <= high) return number;
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": ", Shortened(value.dump(), kShownBytes),
                   " is no whole number in [", low, ", ", high, "]"));
}

// Fills a trace from records, one after the other.
class Recording {
 public:
  absl::Status Add(const nlohmann::json& record) {
    const std::string event = record.at("event").get<std::string>();
    if (event != "push" && event != "update" && event != "install")
      return absl::OkStatus();
    SL_ASSIGN_OR_RETURN(const int64_t id,
                        WholeNumber(record.at("shard"), "shard", 0, kShardMax));
    if (id >= static_cast<int64_t>(trace_.shards.size())) {
      trace_.shards.resize(id + 1);
      versions_.resize(id + 1);
      installed_.resize(id + 1, 0);
    }
    SL_ASSIGN_OR_RETURN(const Clock clock,
                        WholeNumber(record.at("clock"), "clock", 0, kStepsMax));
    SL_ASSIGN_OR_RETURN(
        const int64_t version,
        WholeNumber(record.at("version"), "version", 0, kVersionMax));
    if (event == "install") {
      // Before all else at the shard, and at one clock at all of them.
      if (!trace_.shards[id].reads.empty() || installed_[id] != 0 ||
          (trace_.first != 0 && trace_.first != clock) || clock == 0 ||
          version == 0) {
        return absl::InvalidArgumentError(
            "the run changed to all-reduce and back, and no server sees those "
            "steps; record one without");
      }
      trace_.first = clock;
      installed_[id] = version;
      return absl::OkStatus();
    }
    if (event == "push") {
      SL_ASSIGN_OR_RETURN(const int32_t rank, RankOf(record.at("rank")));
      trace_.workers = std::max(trace_.workers, rank + 1);
      trace_.shards[id].reads.push_back(
          {.rank = rank, .clock = clock, .version = version});
      if (!seen_.insert({{id, rank}, clock}).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "rank ", rank, " pushed clock ", clock, " to shard ", id,
            " a second time: the worker was started again, and two lives "
            "cannot be told apart; record a run without"));
      }
      return absl::OkStatus();
    }
    DelayTrace::Update update{.clock = clock, .ranks = {}, .workers = 0};
    for (const nlohmann::json& value : record.at("ranks")) {
      SL_ASSIGN_OR_RETURN(const int32_t rank, RankOf(value));
      update.ranks.push_back(rank);
      if (!applied_.insert({{id, rank}, clock}).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "the gradient of rank ", rank, " and clock ", clock, " to shard ",
            id, " is applied a second time; a run applies each once"));
      }
    }
    SL_ASSIGN_OR_RETURN(
        const int64_t workers,
        WholeNumber(record.at("workers"), "workers", 1, kWorkersMax));
    update.workers = static_cast<int>(workers);
    if (update.ranks.empty())
      return absl::InvalidArgumentError("an update without ranks");
    versions_[id].push_back({version, std::move(update)});
    return absl::OkStatus();
  }

  absl::StatusOr<DelayTrace> Finish() {
    for (size_t id = 0; id < versions_.size(); ++id) {
      auto& updates = versions_[id];
      // A shard that has moved has its records in several files.
      std::sort(updates.begin(), updates.end(),
                [](const auto& a, const auto& b) { return a.first < b.first; });
      const int64_t base = installed_[id];
      if (trace_.first != 0 && base == 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "shard ", id, " lacks what it became by the steps before clock ",
            trace_.first, "; a file of the recording is incomplete"));
      }
      for (size_t i = 0; i < updates.size(); ++i) {
        const int64_t version = base + static_cast<int64_t>(i) + 1;
        if (updates[i].first != version) {
          return absl::InvalidArgumentError(absl::StrCat(
              "shard ", id, ": the update to version ", version,
              " is missing; ",
              version > 1
                  ? "a file of the recording is incomplete"
                  : "the job went on from a checkpoint, and what was before "
                    "that is not in the recording, or a file of it is "
                    "incomplete; record a run from its first step on"));
        }
        trace_.shards[id].updates.push_back(std::move(updates[i].second));
      }
      for (DelayTrace::Read& read : trace_.shards[id].reads)
        read.version -= base;
    }
    return std::move(trace_);
  }

 private:
  static absl::StatusOr<int32_t> RankOf(const nlohmann::json& value) {
    SL_ASSIGN_OR_RETURN(const int64_t rank,
                        WholeNumber(value, "rank", 0, kWorkersMax - 1));
    return static_cast<int32_t>(rank);
  }

  DelayTrace trace_;
  std::vector<std::vector<std::pair<int64_t, DelayTrace::Update>>> versions_;
  std::vector<int64_t> installed_;  // Versions by all-reduce; 0: none.
  // By shard, rank and clock: gradients that were pushed, and that are in an
  // update.
  std::set<std::pair<std::pair<int64_t, int32_t>, Clock>> seen_;
  std::set<std::pair<std::pair<int64_t, int32_t>, Clock>> applied_;
};

}  // namespace

std::vector<Clock> CompleteClocks(const DelayTrace& trace,
                                  const DelayTrace::Shard& shard) {
  std::vector<Clock> complete(shard.updates.size() + 1, trace.first);
  for (const DelayTrace::Update& update : shard.updates)
    complete.back() = std::max(complete.back(), update.clock + 1);
  for (size_t i = shard.updates.size(); i-- > 0;)
    complete[i] = std::min(complete[i + 1], shard.updates[i].clock);
  return complete;
}

bool IsSyntheticSpec(absl::string_view spec) {
  const std::vector<std::string> parts = absl::StrSplit(spec, ':');
  int64_t clocks = 0;
  return parts.size() == 2 && absl::SimpleAtoi(parts[1], &clocks) &&
         !absl::StrContains(parts[0], '/');
}

absl::StatusOr<SyntheticDelays> ParseSyntheticDelays(absl::string_view spec) {
  using Kind = SyntheticDelays::Kind;
  const std::map<std::string, Kind> kinds = {{"constant", Kind::kConstant},
                                             {"uniform", Kind::kUniform},
                                             {"geometric", Kind::kGeometric},
                                             {"straggler", Kind::kStraggler}};
  const std::vector<std::string> parts = absl::StrSplit(spec, ':');
  SyntheticDelays delays;
  const auto kind = kinds.find(parts[0]);
  if (kind == kinds.end() || parts.size() != 2 ||
      !absl::SimpleAtoi(parts[1], &delays.clocks) || delays.clocks < 0 ||
      delays.clocks > kDelayMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "delays: \"", spec, "\" is not understood; constant:S, uniform:S, ",
        "geometric:S or straggler:S with S clocks in [0, ", kDelayMax,
        "], or the folder of a run with train.trace"));
  }
  delays.kind = kind->second;
  return delays;
}

DelayTrace MakeTrace(const SyntheticDelays& delays, int workers, Clock steps,
                     uint64_t seed, Clock first) {
  Rng rng = Rng(seed).Fork("delays");
  DelayTrace trace;
  trace.workers = workers;
  trace.first = first;
  trace.any_model = true;
  DelayTrace::Shard& shard = trace.shards.emplace_back();
  std::vector<int32_t> order(workers);
  for (int32_t rank = 0; rank < workers; ++rank) order[rank] = rank;
  for (Clock clock = first; clock < steps; ++clock) {
    for (int i = workers - 1; i > 0; --i)
      std::swap(order[i], order[rng.Below(i + 1)]);
    for (const int32_t rank : order) {
      const int64_t delay =
          std::min(clock - first, DrawDelay(delays, rank == workers - 1, rng));
      shard.updates.push_back(
          {.clock = clock, .ranks = {rank}, .workers = workers});
      shard.reads.push_back({.rank = rank,
                             .clock = clock,
                             .version = (clock - first - delay) * workers});
    }
  }
  return trace;
}

std::vector<std::filesystem::path> RecordedTraceFiles(
    const std::string& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const std::string name = entry.path().filename().string();
    if (absl::StartsWith(name, "trace-server-") &&
        absl::EndsWith(name, ".jsonl")) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

absl::StatusOr<DelayTrace> ReadRecordedTrace(const std::string& folder) {
  Recording recording;
  int files = 0;
  for (;; ++files) {
    const std::string path =
        absl::StrCat(folder, "/trace-server-", files, ".jsonl");
    std::error_code ignored;
    const auto kind = std::filesystem::status(path, ignored).type();
    if (kind == std::filesystem::file_type::not_found) break;
    if (kind != std::filesystem::file_type::regular) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, " is no regular file"));
    }
    std::ifstream file(path);
    if (!file) {
      return absl::UnavailableError(
          absl::StrCat(path, " cannot be opened: ", std::strerror(errno)));
    }
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      absl::Status added;
      try {
        added = recording.Add(nlohmann::json::parse(line));
      } catch (const nlohmann::json::exception& error) {
        added = absl::InvalidArgumentError(
            absl::StrCat("no record of a trace: ", error.what()));
      }
      SL_RETURN_IF_ERROR(Annotate(added, absl::StrCat(path, ":", number)));
    }
  }
  if (files == 0) {
    return absl::NotFoundError(
        absl::StrCat(folder,
                     " has no trace-server-0.jsonl; record one with --set "
                     "train.trace=true"));
  }
  absl::StatusOr<DelayTrace> trace = recording.Finish();
  SL_RETURN_IF_ERROR(Annotate(trace.status(), folder));
  if (trace->workers == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": the trace has no pushes"));
  }
  trace->files = files;
  return trace;
}

}  // namespace slackline
