// What is wrong with a config: every part of Slackline checks its own block and
// adds its problems here, each with the field's place in the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/block/field_origins.h"

namespace slackline {

// A collection of problems, seen from one block of the config. Copies, and what
// In() returns, add to the same collection. Thread-compatible.
class ConfigProblems {
 public:
  // For a config that comes from no file: problems have a path and no place.
  ConfigProblems();
  // `origins` has to live as long as the collection.
  explicit ConfigProblems(const FieldOrigins& origins);

  // The fields of a block inside this one, or of an element of a list in it.
  ConfigProblems In(absl::string_view block) const;
  ConfigProblems In(absl::string_view list, int index) const;

  // "c.txt:9:3: limits.lease_ms: " and the text. `field` is a path from this
  // block on, "hidden[2]" for example; empty: the block itself.
  void Add(absl::string_view field, absl::string_view text) const;

  // Each adds "value is 7; ... is required" unless the value is allowed. `fix`
  // is one more thing to say. `bound` completes "... is required".
  template <typename Value>
  void Require(bool allowed, absl::string_view field, const Value& value,
               absl::string_view bound, absl::string_view fix = "") const {
    if (!allowed) Refuse(field, absl::StrCat(value), bound, fix);
  }
  // Whether it is in [low, high].
  bool Range(absl::string_view field, int64_t value, int64_t low, int64_t high,
             absl::string_view fix = "") const;
  void AtLeastZero(absl::string_view field, double value) const;
  void AboveZero(absl::string_view field, double value,
                 absl::string_view fix = "") const;
  // At least 1 and at most kSlowdownMax. `whose` completes "1 is ...".
  void Slowdown(absl::string_view field, double value,
                absl::string_view whose) const;

  // Values that are computed with in float. What is not 0, or is below 1, has
  // to stay so there.
  void FloatAboveZero(absl::string_view field, double value) const;
  void FloatAtLeastZero(absl::string_view field, double value) const;
  void FloatBelowOne(absl::string_view field, double value) const;

  // InvalidArgument: the problems of the whole collection, each in a line; at
  // most 50, which is more than anybody reads.
  absl::Status ToStatus() const;

 private:
  struct Collection {
    const FieldOrigins* origins = nullptr;
    std::vector<std::string> lines;
  };

  ConfigProblems(std::shared_ptr<Collection> collection, std::string path)
      : collection_(std::move(collection)), path_(std::move(path)) {}

  void Refuse(absl::string_view field, absl::string_view value,
              absl::string_view bound, absl::string_view fix) const;
  std::string PathOf(absl::string_view field) const;

  std::shared_ptr<Collection> collection_;
  std::string path_;  // Of the block; empty for the whole config.
};

// A value as an error may show it: quoted, without control characters,
// shortened to a line.
std::string Printable(absl::string_view value);

}  // namespace slackline
