#include "tools/cli/experiment/results_table.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/text.h"

namespace slackline {
namespace {

std::string NumberText(double value, const std::string& unit) {
  if (unit == "share") return PercentText(value, 2);
  return unit == "s" ? absl::StrFormat("%.1f s", value)
                     : absl::StrFormat("%.4f", value);
}

// Student's t of two runs says next to nothing: accuracies from -186 to 288 %.
constexpr int kRunsForInterval = 3;

// "0.1234 [0.1200, 0.1268]"; without an interval for too few runs.
std::string MeanText(const nlohmann::json& mean, const std::string& unit) {
  if (!mean.is_object() || !mean.contains("mean")) return "-";
  const std::string text = NumberText(mean.at("mean").get<double>(), unit);
  const nlohmann::json& low = mean.at("low95");
  const nlohmann::json& high = mean.at("high95");
  if (!low.is_number() || !high.is_number() ||
      mean.at("count").get<int>() < kRunsForInterval) {
    return text;
  }
  return absl::StrCat(text, " [", NumberText(low.get<double>(), unit), ", ",
                      NumberText(high.get<double>(), unit), "]");
}

bool IsShown(const std::string& key) {
  return key == "test_accuracy" || key == "test_loss" ||
         key == "wall_seconds" || absl::StartsWith(key, "seconds_to_");
}

// Throws nlohmann's exceptions for what is not of the form.
std::string TableOf(const nlohmann::json& results) {
  std::vector<Column> columns = {{.title = "variant", .left = true},
                                 {.title = "runs"}};
  for (const nlohmann::json& metric : results.at("metrics")) {
    if (!IsShown(metric.at("key").get<std::string>())) continue;
    columns.push_back({.title = metric.at("label").get<std::string>()});
  }
  std::vector<std::vector<std::string>> rows;
  for (const nlohmann::json& variant : results.at("variants")) {
    const int finished = variant.at("finished").get<int>();
    const int diverged = variant.value("diverged", 0);
    std::vector<std::string> row = {
        variant.at("name").get<std::string>(),
        absl::StrCat(
            finished, "/", variant.at("runs").get<int>(),
            diverged > 0 ? absl::StrCat(", ", diverged, " diverged") : "")};
    for (const nlohmann::json& metric : results.at("metrics")) {
      const std::string key = metric.at("key").get<std::string>();
      if (!IsShown(key)) continue;
      row.push_back(MeanText(variant.at("metrics").at(key),
                             metric.at("unit").get<std::string>()));
    }
    rows.push_back(std::move(row));
  }
  return absl::StrCat(
      TableText(columns, rows),
      "runs: finished/all; means over the runs that finished, with their 95 % "
      "intervals from 3 runs on\n");
}

}  // namespace

absl::StatusOr<std::string> ResultsTable(const std::string& folder) {
  const std::string path = folder + "/data/results.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat(
        path, " is not there; `slackline report ", folder, "` writes it"));
  }
  try {
    return TableOf(nlohmann::json::parse(file));
  } catch (const nlohmann::json::exception& error) {
    return absl::DataLossError(
        absl::StrCat(path, " holds no results: ", error.what()));
  }
}

}  // namespace slackline
