#include "tools/cli/page/earlier_points.h"

#include <algorithm>
#include <map>
#include <optional>
#include <string>

#include "tools/cli/json.h"
#include "tools/cli/page/members_by_index.h"

namespace slackline {
namespace {

using Json = nlohmann::ordered_json;

struct MeanOfRecords {
  double sum = 0;
  int count = 0;
  void Add(double value) {
    sum += value;
    ++count;
  }
  Json value() const { return count > 0 ? Json(sum / count) : Json(); }
};

// What records of one stretch of time say.
struct Stretch {
  double seconds = 0;  // Of its last record.
  MeanOfRecords loss;
  std::map<int, MeanOfRecords> rates;  // By worker,
  std::map<int, double> last;          // and when its last record came.
  Json test_loss;
  Json test_accuracy;
};

void AddRecord(const Json& record, double seconds, Stretch* stretch) {
  stretch->seconds = std::max(stretch->seconds, seconds);
  const std::optional<double> loss = NumberIn(record, "loss");
  const auto kind = record.find("kind");
  if (kind != record.end() && *kind == "eval") {
    if (loss.has_value()) stretch->test_loss = *loss;
    if (const auto accuracy = NumberIn(record, "accuracy");
        accuracy.has_value())
      stretch->test_accuracy = *accuracy;
    return;
  }
  if (loss.has_value()) stretch->loss.Add(*loss);
  const std::optional<double> rank = NumberIn(record, "rank");
  const auto rate = NumberIn(record, "examples_per_second");
  if (!rank.has_value() || !rate.has_value()) return;
  if (*rank < 0 || *rank >= kMembersShownMax) return;
  stretch->rates[static_cast<int>(*rank)].Add(*rate);
  stretch->last[static_cast<int>(*rank)] = seconds;
}

// How fast workers are, where a stretch has no record of some of them.
class RatesOfWorkers {
 public:
  Json At(const Stretch& stretch) {
    for (const auto& [rank, rate] : stretch.rates) {
      const double at = stretch.last.at(rank);
      const auto [worker, is_new] = workers_.try_emplace(rank);
      worker->second = {.rate = rate.value(),
                        .at = at,
                        .gap = is_new ? 0 : at - worker->second.at};
    }
    Json rates = Json::array();
    for (const auto& [rank, worker] : workers_) {
      // Else it is gone, or does something else.
      if (stretch.seconds - worker.at <= kGapsMax * worker.gap ||
          stretch.rates.count(rank) > 0) {
        PutAt(rank, worker.rate, &rates);
      }
    }
    return rates;
  }

 private:
  static constexpr double kGapsMax = 2;
  struct Worker {
    Json rate;
    double at = 0;   // Of its last record,
    double gap = 0;  // and how long after the one before.
  };
  std::map<int, Worker> workers_;
};

}  // namespace

std::vector<Json> EarlierPoints(std::istream& metrics, double until,
                                size_t points_max) {
  const double length = std::max(
      until / static_cast<double>(std::max<size_t>(points_max, 1)), 1.0);
  std::map<size_t, Stretch> stretches;
  std::string line;
  while (points_max > 0 && std::getline(metrics, line)) {
    const Json record = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object()) continue;
    const std::optional<double> seconds = NumberIn(record, "seconds");
    if (!seconds.has_value() || *seconds < 0 || *seconds >= until) continue;
    const auto at =
        std::min(static_cast<size_t>(*seconds / length), points_max - 1);
    AddRecord(record, *seconds, &stretches[at]);
  }
  std::vector<Json> points;
  Json test_loss;
  Json test_accuracy;
  RatesOfWorkers rates;
  for (const auto& [at, stretch] : stretches) {
    if (!stretch.test_loss.is_null()) test_loss = stretch.test_loss;
    if (!stretch.test_accuracy.is_null()) test_accuracy = stretch.test_accuracy;
    points.push_back({{"t", stretch.seconds},
                      {"loss", stretch.loss.value()},
                      {"test_loss", test_loss},
                      {"test_accuracy", test_accuracy},
                      {"clock", Json::array()},
                      {"examples", Json::array()},
                      {"work", Json::array()},
                      {"wait", Json::array()},
                      {"busy", Json::array()},
                      {"rate", rates.At(stretch)}});
  }
  return points;
}

}  // namespace slackline
