// LIBSVM text: one example a line, "label index:value index:value ...", indices
// from 1 and increasing (https://www.csie.ntu.edu.tw/~cjlin/libsvm).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "worker/data/raw_data.h"

namespace slackline {

// Reads a file, plain or gzip. Labels are finite numbers. Feature i of the file
// is column i - 1. Blank lines are skipped. InvalidArgument or DataLoss name
// file, line, what stands there and the bound; NotFound the file.
absl::StatusOr<RawData> ReadLibsvm(const std::string& path, int32_t features);

}  // namespace slackline
