#include "common/metrics/histogram.h"

#include <algorithm>

namespace slackline {
void AddToHistogram(int64_t value, run::Histogram* histogram) {
  const int bin =
      static_cast<int>(std::clamp<int64_t>(value, 0, kHistogramBinsMax - 1));
  while (histogram->bin_size() <= bin) histogram->add_bin(0);
  histogram->set_bin(bin, histogram->bin(bin) + 1);
  histogram->set_max(std::max(histogram->max(), value));
}

void MergeHistogram(const run::Histogram& from, run::Histogram* to) {
  while (to->bin_size() < from.bin_size()) to->add_bin(0);
  for (int i = 0; i < from.bin_size(); ++i)
    to->set_bin(i, to->bin(i) + from.bin(i));
  to->set_max(std::max(to->max(), from.max()));
}

int64_t HistogramPercentile(const run::Histogram& histogram, double fraction) {
  uint64_t total = 0;
  for (const uint64_t count : histogram.bin()) total += count;
  uint64_t seen = 0;
  for (int i = 0; i < histogram.bin_size(); ++i) {
    seen += histogram.bin(i);
    if (static_cast<double>(seen) >= fraction * static_cast<double>(total) &&
        total > 0)
      return i;
  }
  return 0;
}

run::Percentiles PercentilesOf(const run::Histogram& histogram) {
  run::Percentiles percentiles;
  percentiles.set_p50(HistogramPercentile(histogram, 0.50));
  percentiles.set_p99(HistogramPercentile(histogram, 0.99));
  percentiles.set_max(histogram.max());
  return percentiles;
}

}  // namespace slackline
