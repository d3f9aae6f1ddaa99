// CSV: a header line that names the columns, then one example a line, a number
// in each column.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/raw_data.h"

namespace slackline {

struct CsvTable {
  std::vector<std::string> columns;  // As the header names them.
  RawData data;                      // Inputs in the order of the columns.
};

// Reads a file, plain or gzip. Cells are separated by commas and may stand in
// double quotes, in which "" is one; a quoted cell ends in its line. `label`
// names the column of the labels; empty: the last one. Blank lines are skipped.
// InvalidArgument or DataLoss name file, line, column and what stands there;
// NotFound the file.
absl::StatusOr<CsvTable> ReadCsv(const std::string& path,
                                 const std::string& label);

// InvalidArgument names the first column in which the headers differ.
absl::Status CheckSameColumns(const CsvTable& train, const CsvTable& test);

}  // namespace slackline
