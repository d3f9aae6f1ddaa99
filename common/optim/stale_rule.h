// What a server does with a gradient that was computed from an older version of
// the parameters than the one that it is applied to.
//
// Of a gradient g: tau is the number of updates that it misses, W the number of
// workers, w the parameters now, w_then those that it was computed from. All
// but the rates are element by element, so results do not depend on how a table
// is cut into shards. An update has the rate r / W unless a rule says
// otherwise.
//
//   scale            g / (1 + tau / W). tau / W is the delay in clocks: an even
//                    cluster has about 1, however many workers there are.
//   staleness-aware  the rate r / max(1, tau) in place of r / W
//                    (Zhang, Gupta, Lian, Liu, "Staleness-aware async-SGD for
//                    distributed deep learning", 2016)
//   gap-aware        g / (1 + |w - w_then| / c), where c is the decayed mean of
//                    how far an update moves the parameter; 1 where nothing has
//                    moved it yet (Barkai, Hakimi, Schuster, "Gap aware
//                    mitigation of gradient staleness", 2020; in its form for
//                    each parameter by itself)
//   dc constant      g + lambda g g (w - w_then)
//   dc adaptive      g + lambda / sqrt(m + 1e-7) g g (w - w_then), where
//                    m = decay m + (1 - decay) g g
//                    (Zheng et al., "Asynchronous stochastic gradient descent
//                    with delay compensation", 2017)
//   drop             not applied if tau / W is above the limit
//
// The decayed means begin with their first sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Immutable; any thread may call anything at any time. What it remembers of a
// run of parameters belongs to the caller.
class StaleRule {
 public:
  StaleRule() = default;  // Gradients are applied as they are.
  // InvalidArgument names the field, its value and its bound.
  static absl::StatusOr<StaleRule> Create(const config::StaleGradients& config);

  // The values that a gradient was computed from make a difference.
  bool NeedsBase() const;

  struct Memory {
    std::vector<float> mean;  // Empty at first.
  };
  struct Args {
    const std::byte* gradient = nullptr;  // Floats, at any alignment.
    size_t elements = 0;
    const float* now = nullptr;
    // nullptr if it is not known any more: a rule that needs it then leaves the
    // gradient as it is.
    const float* then = nullptr;
    int64_t missed_updates = 0;  // tau. At least 0.
    int workers = 1;             // W.
  };
  struct Verdict {
    bool drop = false;
    double rate_factor = 1;  // Times the rate that the update would have.
    Payload gradient;        // In place of the one that came; none: that one.
  };
  Verdict Judge(const Args& args, Memory* memory) const;

  // Call it after every update, also of gradients that are not stale, if
  // NeedsUpdates().
  bool NeedsUpdates() const;
  void Updated(const float* before, const float* after, size_t elements,
               Memory* memory) const;

 private:
  using Kind = config::StaleGradients::RuleCase;

  Kind kind_ = config::StaleGradients::RULE_NOT_SET;
  float lambda_ = 0;
  float decay_ = 0;
  double limit_clocks_ = 0;
};

// The rules of a job, by table.
class StaleRules {
 public:
  StaleRules() = default;
  static absl::StatusOr<StaleRules> Create(const config::Sync& sync);

  // Of the first entry whose pattern fits the name.
  StaleRule For(const std::string& table) const;
  // InvalidArgument if a pattern fits none of the tables: a name is misspelt.
  absl::Status CheckTables(absl::Span<const std::string> tables) const;

 private:
  struct Entry {
    std::string pattern;
    StaleRule rule;
  };
  std::vector<Entry> entries_;
};

}  // namespace slackline
