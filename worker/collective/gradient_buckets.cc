#include "worker/collective/gradient_buckets.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "common/status.h"

namespace slackline {

absl::StatusOr<GradientBuckets> GradientBuckets::Create(
    const Options& options) {
  constexpr int64_t kFloatBytes = sizeof(float);
  if (options.bucket_bytes < kFloatBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("bucket_bytes: value is too small (", options.bucket_bytes,
                     "), at least ", kFloatBytes, " is required"));
  }
  if (!options.lanes.empty() &&
      options.lanes.size() != options.table_elements.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lanes: there are ", options.lanes.size(), " of ",
                     options.table_elements.size(), " tables"));
  }
  if (options.table_elements.empty()) {
    return absl::InvalidArgumentError(
        "table_elements: it is empty, at least one table is required");
  }
  const int64_t bucket_elements = options.bucket_bytes / kFloatBytes;
  int64_t all_elements = 0;
  for (const int64_t elements : options.table_elements)
    all_elements += elements;
  // What fits into one bucket is not worth a second operation.
  const int64_t first_bucket_elements =
      all_elements <= bucket_elements ? bucket_elements : bucket_elements / 8;

  GradientBuckets buckets(options.memory);
  buckets.places_.resize(options.table_elements.size());
  struct Filling {
    int64_t elements = 0;
    Lane lane = Lane::kRanks;
    int tables = 0;
  };
  std::vector<Filling> filling;
  std::map<Lane, size_t> open;  // Of each lane the last one.
  for (size_t table = options.table_elements.size(); table-- > 0;) {
    const int64_t elements = options.table_elements[table];
    if (elements < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("table_elements[", table, "]: value is too small (",
                       elements, "), at least 1 is required"));
    }
    const Lane lane =
        options.lanes.empty() ? Lane::kRanks : options.lanes[table];
    auto at = open.find(lane);
    const auto has_room = [&](size_t index) {
      const int64_t limit =
          index == 0 ? first_bucket_elements : bucket_elements;
      return elements <= limit - filling[index].elements;
    };
    if (at == open.end() || !has_room(at->second)) {
      at = open.insert_or_assign(lane, filling.size()).first;
      filling.push_back({.lane = lane});
    }
    Filling& bucket = filling[at->second];
    buckets.places_[table] = {.bucket = static_cast<int>(at->second),
                              .offset = bucket.elements,
                              .elements = elements};
    bucket.elements += elements;
    ++bucket.tables;
  }
  for (const Filling& bucket : filling) {
    SL_ASSIGN_OR_RETURN(
        FloatMemory::Array memory,
        buckets.memory().Allocate(static_cast<size_t>(bucket.elements)));
    buckets.buckets_.push_back({.memory = std::move(memory),
                                .lane = bucket.lane,
                                .tables = bucket.tables});
  }
  buckets.added_.resize(buckets.places_.size());
  buckets.BeginStep();
  return buckets;
}

void GradientBuckets::BeginStep() {
  std::fill(added_.begin(), added_.end(), false);
  for (Bucket& bucket : buckets_) bucket.tables_missing = bucket.tables;
  next_bucket_ = 0;
}

absl::Status GradientBuckets::Add(TableId table, const Payload& gradient,
                                  std::vector<int>* issue) {
  const auto index = static_cast<int64_t>(table);
  if (index < 0 || index >= static_cast<int64_t>(places_.size())) {
    return absl::OutOfRangeError(absl::StrCat("gradient of table ", index,
                                              ": there are tables [0, ",
                                              places_.size(), ")"));
  }
  const Place& place = PlaceOf(table);
  const size_t bytes = static_cast<size_t>(place.elements) * sizeof(float);
  if (gradient.size() != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "gradient of table ", index, ": it has ", gradient.size(), " bytes, ",
        bytes, " are required (", place.elements, " floats)"));
  }
  if (added_[index]) {
    return absl::FailedPreconditionError(
        absl::StrCat("gradient of table ", index,
                     ": it was added before in this step; begin the next step "
                     "first"));
  }
  Bucket& bucket = buckets_[place.bucket];
  SL_RETURN_IF_ERROR(memory().Copy(gradient.data(), Gradient(table)));
  added_[index] = true;
  --bucket.tables_missing;
  while (!AllIssued() && buckets_[next_bucket_].tables_missing == 0) {
    issue->push_back(next_bucket_++);
  }
  return absl::OkStatus();
}

absl::Span<float> GradientBuckets::Gradient(TableId table) {
  const Place& place = PlaceOf(table);
  return bucket(place.bucket)
      .subspan(static_cast<size_t>(place.offset),
               static_cast<size_t>(place.elements));
}

}  // namespace slackline
