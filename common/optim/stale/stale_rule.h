// What a server does with a gradient that was computed from an older version of
// the parameters than the one that it is applied to.
//
// The rules with their formulas and sources are in common/optim/stale, one file
// each. There, of a gradient g: tau is the number of updates that it misses, W
// the number of workers, w the parameters now, w_then those that it was
// computed from. All but the rates are element by element, so results do not
// depend on how a table is split into shards. An update has the rate r / W
// unless a rule says otherwise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/block/config_problems.h"
#include "common/payload.h"
#include "proto/cluster.pb.h"

namespace slackline {

// Adds what is wrong with an entry of sync.stale.
void CheckStaleGradients(const config::StaleGradients& config,
                         const ConfigProblems& problems);

// Immutable; any thread may call anything at any time. What it remembers of a
// run of parameters belongs to the caller.
class StaleRule {
 public:
  StaleRule() = default;  // Gradients are applied as they are.
  // InvalidArgument: what CheckStaleGradients() says.
  static absl::StatusOr<StaleRule> Create(const config::StaleGradients& config);

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
    bool maximize = false;       // Optimizer::maximize().

    double DelayClocks() const {
      return static_cast<double>(missed_updates) / workers;
    }
  };
  struct Verdict {
    bool drop = false;
    double rate_factor = 1;  // The update's rate is multiplied by it.
    Payload gradient;        // It replaces the one that came; none: that one.
  };
  // What a rule computes.
  class Formula {
   public:
    virtual ~Formula() = default;
    virtual bool NeedsBase() const { return false; }
    virtual bool NeedsUpdates() const { return false; }
    virtual Verdict Judge(const Args& args, Memory* memory) const = 0;
    virtual void Updated(const float* /*before*/, const float* /*after*/,
                         size_t /*elements*/, Memory* /*memory*/) const {}
  };

  bool any() const { return formula_ != nullptr; }
  // The values that a gradient was computed from make a difference.
  bool NeedsBase() const {
    return formula_ != nullptr && formula_->NeedsBase();
  }
  Verdict Judge(const Args& args, Memory* memory) const {
    return formula_ == nullptr ? Verdict() : formula_->Judge(args, memory);
  }

  // Call Updated() after every update, also of gradients that are not stale, if
  // NeedsUpdates().
  bool NeedsUpdates() const {
    return formula_ != nullptr && formula_->NeedsUpdates();
  }
  void Updated(const float* before, const float* after, size_t elements,
               Memory* memory) const {
    if (formula_ != nullptr) formula_->Updated(before, after, elements, memory);
  }

 private:
  // nullptr: gradients are applied as they are.
  std::shared_ptr<const Formula> formula_;
};

// The rules of a job, by table.
class StaleRules {
 public:
  StaleRules() = default;
  static absl::StatusOr<StaleRules> Create(const config::Sync& sync);

  // The rule of the first entry whose pattern fits the name.
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
