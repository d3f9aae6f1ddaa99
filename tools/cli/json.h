// What the subcommands print with --json: docs/manual/commands.md.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "google/protobuf/message.h"

namespace slackline {

// Every field of the message under its name in the schema, in that order: zeros
// and empty lists too, numbers as numbers, what is no number (NaN) as null,
// enum values by name, a mode as for --mode ("ssp:3"). A fixed64, which is a
// hash, is 16 hexadecimal digits: JSON numbers of many readers have 53 bits.
// null: an optional field or a block that is not there. Of a choice only the
// branch that is taken is there.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// A field of an object; nullopt: it has no such number.
template <typename Json>
std::optional<double> NumberIn(const Json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_number()) return std::nullopt;
  return found->template get<double>();
}

// On stdout: a document over several lines, or in one.
void PrintJson(const nlohmann::ordered_json& json);
void PrintJsonLine(const nlohmann::ordered_json& json);

}  // namespace slackline
