// Where each field of a config was given, so that an error can point there.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"

namespace slackline {

// Maps field paths ("worker[1].slowdown") to text for people: a place in the
// file ("mnist.textproto:7:3") or a flag ("--set worker[1].slowdown=3").
class FieldOrigins {
 public:
  explicit FieldOrigins(std::string file_name)
      : file_name_(std::move(file_name)) {}

  void Set(const std::string& path, std::string origin) {
    origins_[path] = std::move(origin);
  }
  // Forgets `path` and everything inside it.
  void Erase(const std::string& path);

  // Empty if the field itself was not given.
  std::string At(const std::string& path) const;
  // The origin of the field or, if it was not given, of the innermost block
  // around it that was; the start of the file if there is none.
  std::string Nearest(absl::string_view path) const;

 private:
  std::string file_name_;
  std::map<std::string, std::string> origins_;
};

}  // namespace slackline
