#include "tools/cli/doctor/replies.h"

#include <cstdint>
#include <string>
#include <utility>

#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace slackline {
namespace {

bool IsDoctorSize(const google::protobuf::Message& message) {
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < type.field_count(); ++i) {
    const auto& field = *type.field(i);
    using Field = google::protobuf::FieldDescriptor;
    const bool is_message = field.cpp_type() == Field::CPPTYPE_MESSAGE;
    const int count =
        field.is_repeated() ? reflection.FieldSize(message, &field)
        : (!is_message || reflection.HasField(message, &field)) ? 1
                                                                : 0;
    if (count > kDoctorListMax) return false;
    for (int k = 0; k < count; ++k) {
      if (is_message) {
        if (!IsDoctorSize(
                field.is_repeated()
                    ? reflection.GetRepeatedMessage(message, &field, k)
                    : reflection.GetMessage(message, &field))) {
          return false;
        }
      } else if (field.cpp_type() == Field::CPPTYPE_STRING) {
        const std::string text =
            field.is_repeated()
                ? reflection.GetRepeatedString(message, &field, k)
                : reflection.GetString(message, &field);
        if (text.size() > kDoctorTextMax) return false;
      } else if (field.cpp_type() == Field::CPPTYPE_INT64 &&
                 !field.is_repeated()) {
        // No file, time or rate is larger, and sums of a few do not overflow.
        const int64_t number = reflection.GetInt64(message, &field);
        if (number < -1 || number > int64_t{1} << 61) return false;
      }
    }
  }
  return true;
}

}  // namespace

absl::Status CheckReply(const doctor::Reply& reply) {
  if (IsDoctorSize(reply)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "an answer has longer lists, texts or numbers than any agent sends");
}

void AddReply(doctor::Reply reply, doctor::Host* host) {
  switch (reply.what_case()) {
    case doctor::Reply::kFacts:
      *host->mutable_facts() = std::move(*reply.mutable_facts());
      break;
    case doctor::Reply::kOpened:
      *host->mutable_opened() = std::move(*reply.mutable_opened());
      break;
    case doctor::Reply::kMarksSeen:
      *host->mutable_marks_seen() = std::move(*reply.mutable_marks_seen());
      break;
    case doctor::Reply::kTried:
    case doctor::Reply::WHAT_NOT_SET:
      break;
  }
}

}  // namespace slackline
