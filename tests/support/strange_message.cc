#include "tests/support/strange_message.h"

#include <limits>

#include "google/protobuf/descriptor.h"

namespace slackline {
namespace {

int64_t StrangeNumber(Rng& rng) {
  constexpr int64_t kNumbers[] = {0,
                                  1,
                                  -1,
                                  7,
                                  int64_t{1} << 20,
                                  std::numeric_limits<int32_t>::max(),
                                  std::numeric_limits<int32_t>::min(),
                                  std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min(),
                                  int64_t{1} << 60};
  return kNumbers[rng.Below(std::size(kNumbers))];
}

}  // namespace

void ChangeField(Rng& rng, google::protobuf::Message* message) {
  using Field = google::protobuf::FieldDescriptor;
  const google::protobuf::Reflection& reflection = *message->GetReflection();
  std::vector<const Field*> fields;
  reflection.ListFields(*message, &fields);
  if (fields.empty()) return;
  const Field* const field = fields[rng.Below(fields.size())];
  const int64_t number = StrangeNumber(rng);
  const auto at = [&] {
    return static_cast<int>(rng.Below(
        static_cast<uint64_t>(reflection.FieldSize(*message, field))));
  };
  const bool more = field->is_repeated() && rng.Chance(0.3);
  switch (field->cpp_type()) {
    case Field::CPPTYPE_MESSAGE:
      if (more) {
        reflection.AddMessage(message, field);
      } else if (field->is_repeated()) {
        ChangeField(rng,
                    reflection.MutableRepeatedMessage(message, field, at()));
      } else {
        ChangeField(rng, reflection.MutableMessage(message, field));
      }
      return;
    case Field::CPPTYPE_INT32:
      if (more) {
        reflection.AddInt32(message, field, static_cast<int32_t>(number));
      } else if (field->is_repeated()) {
        reflection.SetRepeatedInt32(message, field, at(),
                                    static_cast<int32_t>(number));
      } else {
        reflection.SetInt32(message, field, static_cast<int32_t>(number));
      }
      return;
    case Field::CPPTYPE_INT64:
      if (more) {
        reflection.AddInt64(message, field, number);
      } else if (field->is_repeated()) {
        reflection.SetRepeatedInt64(message, field, at(), number);
      } else {
        reflection.SetInt64(message, field, number);
      }
      return;
    case Field::CPPTYPE_UINT64:
      if (more) {
        reflection.AddUInt64(message, field, static_cast<uint64_t>(number));
      } else if (field->is_repeated()) {
        reflection.SetRepeatedUInt64(message, field, at(),
                                     static_cast<uint64_t>(number));
      } else {
        reflection.SetUInt64(message, field, static_cast<uint64_t>(number));
      }
      return;
    case Field::CPPTYPE_BOOL:
      if (!field->is_repeated()) {
        reflection.SetBool(message, field,
                           !reflection.GetBool(*message, field));
      }
      return;
    default:
      if (!field->is_repeated()) reflection.ClearField(message, field);
  }
}

void ChangePayloads(Rng& rng, std::vector<Payload>* payloads) {
  if (payloads->empty() || rng.Chance(0.2)) {
    payloads->push_back(Payload::Copy("strange!", rng.Below(9)));
    return;
  }
  Payload& payload = (*payloads)[rng.Below(payloads->size())];
  if (rng.Chance(0.3)) {
    payloads->pop_back();
  } else {
    payload = Payload::Copy(payload.data(), rng.Below(payload.size() + 1));
  }
}

}  // namespace slackline
