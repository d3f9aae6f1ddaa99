// Exposition: figures as text that Prometheus reads
// (prometheus.io/docs/instrumenting/exposition_formats, version 0.0.4).
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "proto/run.pb.h"

namespace slackline {

class Exposition {
 public:
  static constexpr char kType[] = "text/plain; version=0.0.4; charset=utf-8";

  // Pairs of a name and a value, which may be any text.
  using Labels = std::vector<std::pair<std::string, std::string>>;

  // What is added from now on are samples of this metric. `type` is one of the
  // format, `help` a sentence without its stop.
  void Begin(const std::string& name, absl::string_view type,
             absl::string_view help);
  void Add(double value, const Labels& labels);
  // Cumulative buckets at 0, 1, 2, 4, ... and its sum, which counts a value
  // beyond the last bin as that.
  void Add(const run::Histogram& histogram, const Labels& labels);

  std::string Take() { return std::move(text_); }

 private:
  void Line(const std::string& suffix, double value, const Labels& labels);

  std::string name_;
  std::string text_;
};

}  // namespace slackline
