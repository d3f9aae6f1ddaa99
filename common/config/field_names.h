// Words about the fields of the schema for error messages.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "google/protobuf/descriptor.h"

namespace slackline {

// "unknown field 'hosst'; did you mean 'host'? (fields here: host, count)".
// The suggestion is left out if no name is near.
std::string UnknownFieldText(const google::protobuf::Descriptor& message,
                             absl::string_view name);

// What a value of the field is, for example "a whole number" or "one of CPU".
std::string ExpectedValueText(const google::protobuf::FieldDescriptor& field);

// Appends a field to the path of its message: "limits" and "lease_ms" give
// "limits.lease_ms", "" and "worker" with index 1 give "worker[1]". The index
// is for lists; a negative one means the list as a whole.
std::string FieldPath(absl::string_view parent,
                      const google::protobuf::FieldDescriptor& field,
                      int index);

}  // namespace slackline
