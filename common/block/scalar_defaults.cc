#include "common/block/scalar_defaults.h"

#include "google/protobuf/descriptor.h"

namespace slackline {

void WriteScalarDefaults(google::protobuf::Message* message) {
  using google::protobuf::FieldDescriptor;
  const google::protobuf::Descriptor& type = *message->GetDescriptor();
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor* field = type.field(i);
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      if (field->is_repeated()) {
        for (int k = 0; k < reflection.FieldSize(*message, field); ++k) {
          WriteScalarDefaults(
              reflection.MutableRepeatedMessage(message, field, k));
        }
      } else if (reflection.HasField(*message, field)) {
        WriteScalarDefaults(reflection.MutableMessage(message, field));
      }
      continue;
    }
    if (field->is_repeated() || !field->has_default_value() ||
        reflection.HasField(*message, field)) {
      continue;
    }
    switch (field->cpp_type()) {
      case FieldDescriptor::CPPTYPE_INT32:
        reflection.SetInt32(message, field, field->default_value_int32());
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        reflection.SetInt64(message, field, field->default_value_int64());
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        reflection.SetDouble(message, field, field->default_value_double());
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        reflection.SetBool(message, field, field->default_value_bool());
        break;
      case FieldDescriptor::CPPTYPE_ENUM:
        reflection.SetEnum(message, field, field->default_value_enum());
        break;
      case FieldDescriptor::CPPTYPE_STRING:
        reflection.SetString(message, field,
                             std::string(field->default_value_string()));
        break;
      default:
        break;  // The schema has no fields of other types.
    }
  }
}

}  // namespace slackline
