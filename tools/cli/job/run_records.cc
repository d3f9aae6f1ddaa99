#include "tools/cli/job/run_records.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/cli/json.h"

namespace slackline {
namespace {

using Json = nlohmann::json;

// No record is as long.
constexpr size_t kLineBytesMax = 1 << 20;

// A line of at most kLineBytesMax; what is longer is passed over. False: there
// is none any more.
bool ReadLine(std::istream& in, std::string* line) {
  line->clear();
  bool any = false;
  for (int c = in.get(); c != std::istream::traits_type::eof(); c = in.get()) {
    any = true;
    if (c == '\n') break;
    if (line->size() <= kLineBytesMax) line->push_back(static_cast<char>(c));
  }
  if (line->size() > kLineBytesMax) line->clear();
  return any;
}

struct LastOfWorker {
  double seconds = 0;
  int64_t step = 0;
  std::optional<double> loss;
};

// As the coordinator does it: the mean over the workers that have come
// furthest.
std::optional<double> TrainLoss(
    const std::map<int64_t, LastOfWorker>& workers) {
  int64_t step = 0;
  for (const auto& [rank, last] : workers)
    if (last.loss.has_value()) step = std::max(step, last.step);
  double sum = 0;
  int count = 0;
  for (const auto& [rank, last] : workers) {
    if (!last.loss.has_value() || last.step != step) continue;
    sum += *last.loss;
    ++count;
  }
  if (count == 0) return std::nullopt;
  return sum / count;
}

}  // namespace

std::string RecordsEnd::ToString() const {
  return absl::StrFormat("step %d, %.1f s after the job began to run", step,
                         seconds);
}

RecordsEnd PutRecords(std::istream& metrics, int64_t from_step,
                      run::Summary* summary) {
  RecordsEnd end;
  double examples = 0;
  double trained_until = 0;
  std::map<int64_t, LastOfWorker> workers;  // By rank.
  std::optional<double> test_loss;
  std::optional<double> test_accuracy;
  for (std::string line; ReadLine(metrics, &line);) {
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) continue;
    const auto step = record.find("step");
    const std::optional<double> seconds = NumberIn(record, "seconds");
    if (step == record.end() || !step->is_number_integer() ||
        !seconds.has_value() || step->get<int64_t>() <= from_step) {
      continue;
    }
    ++end.records;
    end.step = std::max(end.step, step->get<int64_t>());
    end.seconds = std::max(end.seconds, *seconds);
    const std::optional<double> loss = NumberIn(record, "loss");
    const auto kind = record.find("kind");
    if (kind != record.end() && *kind == "eval") {
      if (loss.has_value()) test_loss = loss;
      if (const auto accuracy = NumberIn(record, "accuracy");
          accuracy.has_value()) {
        test_accuracy = accuracy;
      }
      continue;
    }
    const auto rank = record.find("rank");
    LastOfWorker& last =
        workers[rank != record.end() && rank->is_number_integer()
                    ? rank->get<int64_t>()
                    : 0];
    examples += NumberIn(record, "examples_per_second").value_or(0) *
                std::max(0.0, *seconds - last.seconds);
    last.seconds = std::max(last.seconds, *seconds);
    last.step = step->get<int64_t>();
    if (loss.has_value()) last.loss = loss;
    trained_until = std::max(trained_until, *seconds);
  }
  if (summary == nullptr || end.records == 0) return end;
  summary->set_steps(std::max(summary->steps(), end.step));
  summary->set_wall_seconds(trained_until);
  if (trained_until > 0)
    summary->set_examples_per_second(examples / trained_until);
  if (const auto loss = TrainLoss(workers); loss.has_value())
    summary->set_train_loss(*loss);
  if (test_loss.has_value()) summary->set_test_loss(*test_loss);
  if (test_accuracy.has_value()) summary->set_test_accuracy(*test_accuracy);
  return end;
}

RecordsEnd PutRecordsOf(const std::string& folder, int64_t from_step,
                        run::Summary* summary) {
  const std::string path = absl::StrCat(folder, "/metrics.jsonl");
  std::error_code error;  // To open a pipe waits for whoever writes to it.
  if (!std::filesystem::is_regular_file(path, error)) return {};
  std::ifstream metrics(path);
  return PutRecords(metrics, from_step, summary);
}

}  // namespace slackline
