#include "common/process/usage_error.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/config/field_names.h"
#include "common/config/nearest_name.h"
#include "common/config/shell_line.h"
#include "common/process/exit_code.h"
#include "proto/cluster.pb.h"

namespace slackline {
namespace {

constexpr int kNestingMax = 8;
constexpr size_t kFieldsMax = 3;

// The subcommand that was called, or the program itself; or which of them was
// given words that it does not understand.
const CLI::App& Called(const CLI::App& app) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const bool here = chosen.empty() || !app.remaining().empty();
  return here ? app : Called(*chosen.back());
}

std::string FullName(const CLI::App& called) {
  const CLI::App* const parent = called.get_parent();
  return parent == nullptr
             ? called.get_name()
             : absl::StrCat(FullName(*parent), " ", called.get_name());
}

std::vector<std::string> SubcommandsOf(const CLI::App& called) {
  std::vector<std::string> names;
  for (const CLI::App* subcommand :
       called.get_subcommands([](const CLI::App*) { return true; })) {
    names.push_back(subcommand->get_name());
  }
  return names;
}

std::vector<std::string> FlagsOf(const CLI::App& called) {
  std::vector<std::string> names;
  for (const CLI::Option* option : called.get_options()) {
    for (const std::string& name : option->get_lnames()) names.push_back(name);
  }
  return names;
}

// Paths of the fields with this name, as --set takes them.
void FindFields(const google::protobuf::Descriptor& message,
                const std::string& parent, const std::string& name, int depth,
                std::vector<std::string>* paths) {
  if (depth > kNestingMax) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    const std::string path = FieldPath(parent, field, 0);
    if (field.cpp_type() ==
        google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      FindFields(*field.message_type(), path, name, depth + 1, paths);
    } else if (field.name() == name && !field.is_repeated()) {
      paths->push_back(path);
    }
  }
}

// The names of all fields.
void AllFields(const google::protobuf::Descriptor& message, int depth,
               std::vector<std::string>* names) {
  if (depth > kNestingMax) return;
  for (int i = 0; i < message.field_count(); ++i) {
    const auto& field = *message.field(i);
    if (field.cpp_type() ==
        google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      AllFields(*field.message_type(), depth + 1, names);
    } else if (!field.is_repeated()) {
      names->push_back(std::string(field.name()));
    }
  }
}

// "--set train.epochs=3", for the field that is meant by a flag `name`.
std::string AsField(const std::string& name, const std::string& value) {
  if (name.size() < 3) return "";  // Every other name of two letters is near.
  const auto& config = *config::ClusterConfig::descriptor();
  std::vector<std::string> names;
  AllFields(config, 0, &names);
  const std::string field =
      NearestName(absl::StrReplaceAll(name, {{"-", "_"}}), names);
  if (field.empty()) return "";
  std::vector<std::string> paths;
  FindFields(config, "", field, 0, &paths);
  const bool more = paths.size() > kFieldsMax;
  if (more) paths.resize(kFieldsMax);
  for (std::string& path : paths)
    path = absl::StrCat("--set ", path, "=", value.empty() ? "VALUE" : value);
  return absl::StrCat(absl::StrJoin(paths, " or "), more ? " or similar" : "");
}

// The value that was written behind the flag, or with it.
std::string ValueOf(const std::string& flag,
                    const std::vector<std::string>& arguments) {
  if (const size_t equals = flag.find('='); equals != std::string::npos)
    return flag.substr(equals + 1);
  const auto at = std::find(arguments.begin(), arguments.end(), flag);
  if (at == arguments.end() || at + 1 == arguments.end()) return "";
  return absl::StartsWith(*(at + 1), "-") ? "" : *(at + 1);
}

std::string UnknownFlagText(const CLI::App& called, const std::string& flag,
                            const std::vector<std::string>& arguments) {
  const std::vector<std::string> flags = FlagsOf(called);
  const std::string written = flag.substr(0, flag.find('='));
  const std::string name =
      written.substr(std::min(written.size(), written.find_first_not_of('-')));
  std::string meant = NearestName(name, flags);
  if (!meant.empty()) {
    meant = absl::StrCat("--", meant);
  } else if (std::count(flags.begin(), flags.end(), "set") > 0) {
    meant = AsField(name, ValueOf(flag, arguments));
  }
  return absl::StrCat(
      "there is no flag ", written,
      meant.empty() ? "" : absl::StrCat("; did you mean ", meant, "?"));
}

// The option of this name, as in "--epochs"; nullptr: there is none.
const CLI::Option* OptionOf(const CLI::App& called, const std::string& flag) {
  if (!absl::StartsWith(flag, "--")) return nullptr;
  for (const CLI::Option* const option : called.get_options()) {
    const std::vector<std::string>& names = option->get_lnames();
    if (std::count(names.begin(), names.end(), flag.substr(2)) > 0)
      return option;
  }
  return nullptr;
}

// What is to be written in place of "--timeline 5", whose flag may have a
// value, or of "--dry-run 5", whose flag has none.
std::string BehindFlagText(const CLI::Option& option, const std::string& flag,
                           const std::string& word) {
  // What the flag alone stands for; a number, if it may be another one, too.
  const std::string alone = option.get_flag_value(flag.substr(2), "");
  if (alone == "true" || alone == "false")
    return absl::StrCat("; ", flag, " takes no value: leave it out");
  return absl::StrCat("; ", flag, " takes its value behind '=': ", flag, "=",
                      word);
}

// A program that should stand behind "--": the command as it should be.
std::string WithDashes(const std::string& name,
                       const std::vector<std::string>& arguments,
                       std::vector<std::string>::const_iterator program) {
  // The first argument is the subcommand.
  std::vector<std::string> words(arguments.begin() + 1, program);
  words.emplace_back("--");
  if (absl::EndsWith(*program, ".py")) words.emplace_back("python3");
  words.insert(words.end(), program, arguments.end());
  return absl::StrCat("; a program for the workers stands behind --: ", name,
                      " ", ShellLine(words));
}

std::string OneTooManyText(const CLI::App& called, const std::string& word,
                           const std::vector<std::string>& arguments,
                           bool before_programs) {
  const std::string text =
      absl::StrCat("'", word, "' is one argument too many");
  const auto at = std::find(arguments.begin(), arguments.end(), word);
  if (at == arguments.begin() || at == arguments.end()) return text;
  const CLI::Option* const before = OptionOf(called, *(at - 1));
  if (before != nullptr && before->get_expected_max() == 0)
    return absl::StrCat(text, BehindFlagText(*before, *(at - 1), word));
  if (!before_programs) return text;
  return absl::StrCat(text, WithDashes(FullName(called), arguments, at));
}

std::string UnknownWordText(const CLI::App& called, const std::string& word,
                            const std::vector<std::string>& arguments,
                            bool before_programs) {
  const std::vector<std::string> subcommands = SubcommandsOf(called);
  if (subcommands.empty())
    return OneTooManyText(called, word, arguments, before_programs);
  const std::string meant = NearestName(word, subcommands);
  return absl::StrCat(
      "'", word, "' is no subcommand; ",
      meant.empty()
          ? absl::StrCat("these are: ", absl::StrJoin(subcommands, ", "))
          : absl::StrCat("did you mean '", meant, "'?"));
}

}  // namespace

std::string UsageErrorText(const CLI::App& app, const CLI::ParseError& error,
                           const std::vector<std::string>& arguments,
                           const std::vector<std::string>& before_programs) {
  const CLI::App& called = Called(app);
  const bool is_before_programs =
      std::count(before_programs.begin(), before_programs.end(),
                 called.get_name()) > 0;
  const std::vector<std::string> unknown = called.remaining();
  std::string what = error.what();
  const auto is = [&](CLI::ExitCodes code) {
    return error.get_exit_code() == static_cast<int>(code);
  };
  // A flag that is not understood may be why something else is missing.
  if (!unknown.empty() &&
      (is(CLI::ExitCodes::ExtrasError) || is(CLI::ExitCodes::RequiredError))) {
    const auto flag = std::find_if(
        unknown.begin(), unknown.end(),
        [](const auto& word) { return absl::StartsWith(word, "-"); });
    // Where a subcommand is not understood, nor are the flags behind it; and
    // those of a program that begins before them are its own.
    const bool is_flag =
        flag != unknown.end() &&
        ((SubcommandsOf(called).empty() && !is_before_programs) ||
         flag == unknown.begin());
    what = is_flag ? UnknownFlagText(called, *flag, arguments)
                   : UnknownWordText(called, unknown.front(), arguments,
                                     is_before_programs);
  }
  const std::string name = FullName(called);
  return absl::StrCat(name, ": ", what, "\n`", name,
                      " --help` says what it takes");
}

int ExitOnParseError(const CLI::App& app, const CLI::ParseError& error,
                     const std::vector<std::string>& arguments,
                     const std::vector<std::string>& before_programs) {
  if (error.get_exit_code() == 0) return app.exit(error);
  std::fprintf(stderr, "%s\n",
               UsageErrorText(app, error, arguments, before_programs).c_str());
  return kExitUsage;
}

}  // namespace slackline
