// LIBSVM text: one example a line, "label index:value index:value ...", indices
// from 1 and increasing (https://www.csie.ntu.edu.tw/~cjlin/libsvm).
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/data/dataset.h"

namespace slackline {

// Reads a binary problem, plain or gzip. Labels are 0 and 1, or -1 and +1,
// which become 0 and 1; one file does not mix the two. Feature i of the file is
// column i - 1. Blank lines are skipped. InvalidArgument or DataLoss name file,
// line, what stands there and the bound; NotFound the file.
absl::StatusOr<std::shared_ptr<const Dataset>> ReadLibsvm(
    const std::string& path, int32_t features);

}  // namespace slackline
