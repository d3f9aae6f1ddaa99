// DataSplit: training and test data that belong together.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/raw_data.h"

namespace slackline {

struct DataSplit {
  std::shared_ptr<const Dataset> train;
  std::shared_ptr<const Dataset> test;
  // For people: where the data are from, sizes, how inputs are normalised; says
  // so when the data are a stand-in.
  std::string description;
  // 16 hexadecimal digits, by which two processes see that they train on the
  // same examples: a hash of all inputs, as they are trained on, and all
  // labels.
  std::string hash;
};

// What labels are.
struct LabelRule {
  enum class Kind {
    // Integers from 0 on; there is one class more than the largest label of the
    // training data.
    kUpToLargest,
    // The distinct integers of the training data, in ascending order, are the
    // classes 0, 1, and so on.
    kDistinct,
    kRealNumbers,
  };
  Kind kind = Kind::kUpToLargest;
  // kUpToLargest: as if the largest label were that of the last class. 0: not
  // known.
  int32_t classes = 0;
};

// Labels become classes or numbers, and inputs are normalised, all as the
// training data say. InvalidArgument names the place of a label that is no
// integer, or that the training data lack, and says where training and test
// inputs do not belong together; for the others see NormalisationOf().
absl::StatusOr<DataSplit> MakeSplit(RawData train, RawData test,
                                    const LabelRule& rule,
                                    const config::Normalisation& normalisation);

}  // namespace slackline
