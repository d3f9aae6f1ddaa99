// Values as YAML that people read and every parser takes alike. A pure
// function.
//
// JSON is YAML, and JSON's strings are: so what is not a plain word stands in
// quotes as JSON has it, and the structure around it in lines. A text of
// several lines stands as it is. That takes no library beside the one for JSON,
// and libraries for YAML write words such as `no` or `1e3` without quotes.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace slackline {

// Objects keep their order. All texts are UTF-8; a caller that has others from
// somewhere has checked them (IsUtf8()).
std::string YamlText(const nlohmann::ordered_json& value);

}  // namespace slackline
