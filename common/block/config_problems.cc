#include "common/block/config_problems.h"

#include <cmath>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "common/block/bounds.h"

namespace slackline {
namespace {

constexpr size_t kLinesMax = 50;
constexpr size_t kPrintableMax = 64;

}  // namespace

ConfigProblems::ConfigProblems()
    : collection_(std::make_shared<Collection>()) {}

ConfigProblems::ConfigProblems(const FieldOrigins& origins) : ConfigProblems() {
  collection_->origins = &origins;
}

ConfigProblems ConfigProblems::In(absl::string_view block) const {
  return {collection_, PathOf(block)};
}

ConfigProblems ConfigProblems::In(absl::string_view list, int index) const {
  return In(absl::StrCat(list, "[", index, "]"));
}

std::string ConfigProblems::PathOf(absl::string_view field) const {
  if (path_.empty() || field.empty()) return absl::StrCat(path_, field);
  return absl::StrCat(path_, ".", field);
}

void ConfigProblems::Add(absl::string_view field,
                         absl::string_view text) const {
  const std::string path = PathOf(field);
  std::string line = absl::StrCat(path, ": ", text);
  if (collection_->origins != nullptr) {
    line = absl::StrCat(collection_->origins->Nearest(path), ": ", line);
  }
  collection_->lines.push_back(std::move(line));
}

void ConfigProblems::Refuse(absl::string_view field, absl::string_view value,
                            absl::string_view bound,
                            absl::string_view fix) const {
  Add(field, absl::StrCat("value is ", value, "; ", bound, " is required",
                          fix.empty() ? "" : "; ", fix));
}

bool ConfigProblems::Range(absl::string_view field, int64_t value, int64_t low,
                           int64_t high, absl::string_view fix) const {
  const bool allowed = value >= low && value <= high;
  Require(allowed, field, value, absl::StrCat(low, " to ", high), fix);
  return allowed;
}

void ConfigProblems::AtLeastZero(absl::string_view field, double value) const {
  Require(std::isfinite(value) && value >= 0, field, value, "at least 0");
}

void ConfigProblems::AboveZero(absl::string_view field, double value,
                               absl::string_view fix) const {
  Require(std::isfinite(value) && value > 0, field, value, "above 0", fix);
}

void ConfigProblems::Slowdown(absl::string_view field, double value,
                              absl::string_view whose) const {
  Require(value >= 1 && value <= kSlowdownMax, field, value,
          absl::StrCat("1 to ", kSlowdownMax), absl::StrCat("1 is ", whose));
}

void ConfigProblems::FloatAboveZero(absl::string_view field,
                                    double value) const {
  const float rounded = static_cast<float>(value);
  // The longer words only where the value looks allowed.
  Require(
      rounded > 0 && std::isfinite(rounded), field, value,
      value > 0 && std::isfinite(value) ? "a 32-bit float above 0" : "above 0");
}

void ConfigProblems::FloatAtLeastZero(absl::string_view field,
                                      double value) const {
  Require(value >= 0 && std::isfinite(static_cast<float>(value)), field, value,
          value > 0 && std::isfinite(value) ? "a 32-bit float of at least 0"
                                            : "at least 0");
}

void ConfigProblems::FloatBelowOne(absl::string_view field,
                                   double value) const {
  Require(value >= 0 && static_cast<float>(value) < 1, field, value,
          value < 1 && value > 0 ? "a 32-bit float of at least 0 and below 1"
                                 : "at least 0 and below 1");
}

absl::Status ConfigProblems::ToStatus() const {
  std::vector<std::string> lines = collection_->lines;
  if (lines.empty()) return absl::OkStatus();
  if (lines.size() > kLinesMax) {
    const size_t more = lines.size() - kLinesMax;
    lines.resize(kLinesMax);
    lines.push_back(absl::StrCat("and ", more, " more"));
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

std::string Printable(absl::string_view value) {
  return absl::StrCat("'", absl::CHexEscape(value.substr(0, kPrintableMax)),
                      value.size() > kPrintableMax ? "..." : "", "'");
}

}  // namespace slackline
