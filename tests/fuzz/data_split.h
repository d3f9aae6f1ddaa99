// What becomes of data that a reader has taken.
#pragma once

#include "worker/data/data_split.h"

namespace slackline::fuzz {

// Makes training and test data of the same examples, with each kind of labels.
inline void SplitInEveryWay(const RawData& data) {
  config::Normalisation normalisation;
  if (data.image.is_image()) {
    normalisation.mutable_per_channel();
  } else {
    normalisation.mutable_over_all();
  }
  using Kind = LabelRule::Kind;
  for (const Kind kind :
       {Kind::kUpToLargest, Kind::kDistinct, Kind::kRealNumbers})
    (void)MakeSplit(data, data, {.kind = kind}, normalisation);
}

}  // namespace slackline::fuzz
