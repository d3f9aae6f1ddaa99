// What is done to every input of a data set before it is trained on.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "proto/cluster.pb.h"
#include "worker/data/dataset.h"
#include "worker/data/raw_data.h"

namespace slackline {

struct Normalised {
  Scaling scaling;
  // For people, with the figures: "(x - 0.1307) / 0.3081, as given".
  std::string description;
};

// What `config` asks for; if that is computed, from these training data, in
// double precision and in the order of the examples, so that every process gets
// the same bits. InvalidArgument: the data have no channels, or not as many as
// the config has means.
absl::StatusOr<Normalised> NormalisationOf(const config::Normalisation& config,
                                           const RawData& train);

// Does to the tables of coded inputs what they can hold of `scaling`. Returns
// what is left for Dataset::Gather().
Scaling ApplyToTables(const Scaling& scaling, Inputs* inputs);

}  // namespace slackline
