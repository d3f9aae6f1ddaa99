#include "tools/cli/json.h"

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status.h"
#include "common/sync/modes/mode.h"
#include "google/protobuf/descriptor.h"
#include "proto/mode.pb.h"
#include "tools/cli/command_output.h"

namespace slackline {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using nlohmann::ordered_json;

// What follows is for one field; `index` is for lists, and -1 else.
int64_t IntegerOf(const Message& message, const FieldDescriptor* field,
                  int index) {
  const Reflection& in = *message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_INT32) {
    return index < 0 ? in.GetInt32(message, field)
                     : in.GetRepeatedInt32(message, field, index);
  }
  return index < 0 ? in.GetInt64(message, field)
                   : in.GetRepeatedInt64(message, field, index);
}

uint64_t NaturalOf(const Message& message, const FieldDescriptor* field,
                   int index) {
  const Reflection& in = *message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_UINT32) {
    return index < 0 ? in.GetUInt32(message, field)
                     : in.GetRepeatedUInt32(message, field, index);
  }
  return index < 0 ? in.GetUInt64(message, field)
                   : in.GetRepeatedUInt64(message, field, index);
}

double RealOf(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection& in = *message.GetReflection();
  if (field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT) {
    return index < 0 ? in.GetFloat(message, field)
                     : in.GetRepeatedFloat(message, field, index);
  }
  return index < 0 ? in.GetDouble(message, field)
                   : in.GetRepeatedDouble(message, field, index);
}

ordered_json ValueOf(const Message& message, const FieldDescriptor* field,
                     int index) {
  const Reflection& in = *message.GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
    case FieldDescriptor::CPPTYPE_INT64:
      return IntegerOf(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
    case FieldDescriptor::CPPTYPE_UINT64: {
      const uint64_t value = NaturalOf(message, field, index);
      if (field->type() != FieldDescriptor::TYPE_FIXED64) return value;
      return absl::StrFormat("%016x", value);
    }
    case FieldDescriptor::CPPTYPE_FLOAT:
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return RealOf(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return index < 0 ? in.GetBool(message, field)
                       : in.GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_STRING:
      return index < 0 ? in.GetString(message, field)
                       : in.GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM: {
      const int number = index < 0
                             ? in.GetEnumValue(message, field)
                             : in.GetRepeatedEnumValue(message, field, index);
      const auto* const value = field->enum_type()->FindValueByNumber(number);
      // A newer version's has no name here.
      return value == nullptr ? absl::StrCat(number)
                              : std::string(value->name());
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(index < 0 ? in.GetMessage(message, field)
                              : in.GetRepeatedMessage(message, field, index));
  }
  SL_CHECK(false, "a field of a type that Protobuf has");
  return nullptr;
}

// An object, its names in order.
ordered_json MapOf(const Message& message, const FieldDescriptor* field) {
  const Reflection& in = *message.GetReflection();
  const auto* const entry_type = field->message_type();
  std::map<std::string, ordered_json> sorted;
  for (int i = 0; i < in.FieldSize(message, field); ++i) {
    const Message& entry = in.GetRepeatedMessage(message, field, i);
    const ordered_json key = ValueOf(entry, entry_type->map_key(), -1);
    sorted[key.is_string() ? key.get<std::string>() : key.dump()] =
        ValueOf(entry, entry_type->map_value(), -1);
  }
  ordered_json object = ordered_json::object();
  for (auto& [name, value] : sorted) object[name] = std::move(value);
  return object;
}

// Bytes that are no UTF-8 must not end the program.
std::string Dump(const ordered_json& json, int indent) {
  return absl::StrCat(
      json.dump(indent, ' ', false, ordered_json::error_handler_t::replace),
      "\n");
}

}  // namespace

ordered_json ToJson(const Message& message) {
  if (message.GetDescriptor() == sync::Mode::descriptor()) {
    return ModeText(static_cast<const sync::Mode&>(message));
  }
  const Reflection& in = *message.GetReflection();
  const auto& type = *message.GetDescriptor();
  ordered_json object = ordered_json::object();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* const field = type.field(i);
    ordered_json value;
    if (field->is_map()) {
      value = MapOf(message, field);
    } else if (field->is_repeated()) {
      value = ordered_json::array();
      for (int at = 0; at < in.FieldSize(message, field); ++at)
        value.push_back(ValueOf(message, field, at));
    } else if (!field->has_presence() || in.HasField(message, field)) {
      value = ValueOf(message, field, -1);
    } else if (field->real_containing_oneof() != nullptr) {
      continue;
    }
    object[std::string(field->name())] = std::move(value);
  }
  return object;
}

void PrintJson(const ordered_json& json) { PrintResult(Dump(json, 2)); }

void PrintJsonLine(const ordered_json& json) { PrintResult(Dump(json, -1)); }

}  // namespace slackline
