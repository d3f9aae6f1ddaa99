#include "tools/cli/help/command_tree.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace slackline {
namespace {

Command Collect(const CLI::App& app, const std::string& before) {
  Command command = {
      .name = absl::StrCat(before, before.empty() ? "" : " ", app.get_name()),
      .help = app.get_description()};
  for (const CLI::Option* const option : app.get_options()) {
    if (option->get_group().empty()) continue;
    CommandFlag flag = {
        .name = option->get_lnames().empty()
                    ? option->get_name()
                    : absl::StrCat("--", option->get_lnames().front()),
        .value = option->get_items_expected_max() == 0
                     ? ""
                     : option->get_type_name(),
        .help = option->get_description()};
    if (option->get_positional() && !option->get_required())
      flag.name = absl::StrCat("[", flag.name, "]");
    (option->get_positional() ? command.arguments : command.flags)
        .push_back(std::move(flag));
  }
  for (const CLI::App* const child :
       app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!child->get_group().empty())
      command.commands.push_back(Collect(*child, command.name));
  }
  return command;
}

// All commands, a program before its subcommands.
void Flatten(const Command& command, std::vector<const Command*>* all) {
  all->push_back(&command);
  for (const Command& child : command.commands) Flatten(child, all);
}

std::vector<const Command*> AllOf(const Command& program) {
  std::vector<const Command*> all;
  Flatten(program, &all);
  return all;
}

std::string LastWord(const std::string& name) {
  return name.substr(name.rfind(' ') + 1);
}

std::vector<std::string> WordsAfter(const Command& command) {
  std::vector<std::string> words;
  for (const Command& child : command.commands)
    words.push_back(LastWord(child.name));
  for (const CommandFlag& flag : command.flags) words.push_back(flag.name);
  return words;
}

// In single quotes, for all three shells.
std::string Quoted(const std::string& text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

std::string FirstSentence(const std::string& help) {
  const size_t end = help.find_first_of(".;\n");
  return help.substr(0, end);
}

// What has been typed so far are words of commands and flags; the longest chain
// of subcommand names is the command.
std::string BashScript(const Command& program) {
  std::string text =
      absl::StrCat("# bash completion of ", program.name, "\n_", program.name,
                   "() {\n"
                   "  local current=\"${COMP_WORDS[COMP_CWORD]}\" command=",
                   program.name,
                   " words=\"\" word\n"
                   "  local known=\" ");
  for (const Command* const command : AllOf(program))
    absl::StrAppend(&text, absl::StrReplaceAll(command->name, {{" ", "/"}}),
                    " ");
  absl::StrAppend(
      &text,
      "\"\n"
      "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
      "    [[ $word == -- ]] && { COMPREPLY=($(compgen -o default -- "
      "\"$current\")); return; }\n"
      "    [[ $known == *\" $command/$word \"* ]] && command+=\"/$word\"\n"
      "  done\n"
      "  case \"$command\" in\n");
  for (const Command* const command : AllOf(program)) {
    absl::StrAppend(
        &text, "    ", absl::StrReplaceAll(command->name, {{" ", "/"}}),
        ") words=", Quoted(absl::StrJoin(WordsAfter(*command), " ")), " ;;\n");
  }
  absl::StrAppend(&text,
                  "  esac\n"
                  "  COMPREPLY=($(compgen -W \"$words\" -- \"$current\"))\n"
                  "  if [[ $current != -* ]]; then COMPREPLY+=($(compgen -f -- "
                  "\"$current\")); fi\n"
                  "}\n"
                  "complete -o filenames -F _",
                  program.name, " ", program.name, "\n");
  return text;
}

// zsh runs the completions of bash.
std::string ZshScript(const Command& program) {
  return absl::StrCat("#compdef ", program.name,
                      "\nautoload -U +X compinit && compinit\nautoload -U +X "
                      "bashcompinit && bashcompinit\n",
                      BashScript(program));
}

std::string FishScript(const Command& program) {
  std::string text = absl::StrCat("# fish completion of ", program.name, "\n");
  for (const Command* const command : AllOf(program)) {
    const std::vector<std::string> names = absl::StrSplit(command->name, ' ');
    std::vector<std::string> conditions;
    for (size_t i = 1; i < names.size(); ++i) {
      conditions.push_back(
          absl::StrCat("__fish_seen_subcommand_from ", names[i]));
    }
    std::vector<std::string> children;
    for (const Command& child : command->commands)
      children.push_back(LastWord(child.name));
    if (!children.empty()) {
      conditions.push_back(absl::StrCat("not __fish_seen_subcommand_from ",
                                        absl::StrJoin(children, " ")));
    }
    const std::string condition =
        conditions.empty()
            ? ""
            : absl::StrCat(" -n ", Quoted(absl::StrJoin(conditions, "; and ")));
    for (const Command& child : command->commands) {
      absl::StrAppend(&text, "complete -c ", program.name, condition, " -f -a ",
                      LastWord(child.name), " -d ",
                      Quoted(FirstSentence(child.help)), "\n");
    }
    for (const CommandFlag& flag : command->flags) {
      absl::StrAppend(&text, "complete -c ", program.name, condition, " -l ",
                      flag.name.substr(2), flag.value.empty() ? "" : " -r",
                      " -d ", Quoted(FirstSentence(flag.help)), "\n");
    }
  }
  return text;
}

// Dashes that stay, and no line that is taken for a request.
std::string Roff(const std::string& text) {
  std::string escaped =
      absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  std::vector<std::string> lines = absl::StrSplit(escaped, '\n');
  for (std::string& line : lines) {
    if (!line.empty() && (line[0] == '.' || line[0] == '\''))
      line.insert(0, "\\&");
  }
  return absl::StrJoin(lines, "\n.br\n");
}

void AppendFlag(const CommandFlag& flag, std::string* page) {
  absl::StrAppend(page, ".TP\n\\fB", Roff(flag.name), "\\fR",
                  flag.value.empty() ? "" : " ", Roff(flag.value), "\n",
                  Roff(flag.help), "\n");
}

void AppendCommand(const Command& command, std::string* page) {
  std::string usage = command.name;
  for (const CommandFlag& argument : command.arguments)
    absl::StrAppend(&usage, " ", argument.name);
  if (!command.flags.empty()) absl::StrAppend(&usage, " [FLAGS]");
  absl::StrAppend(page, ".SS ", Roff(usage), "\n", Roff(command.help), "\n");
  for (const CommandFlag& argument : command.arguments)
    AppendFlag({.name = argument.name, .value = "", .help = argument.help},
               page);
  for (const CommandFlag& flag : command.flags) AppendFlag(flag, page);
}

}  // namespace

Command CommandsOf(const CLI::App& app) { return Collect(app, ""); }

std::string CompletionScript(const Command& program, const std::string& shell) {
  if (shell == "bash") return BashScript(program);
  if (shell == "zsh") return ZshScript(program);
  if (shell == "fish") return FishScript(program);
  return "";
}

std::string ManualPage(const Command& program, const std::string& version) {
  std::string page =
      absl::StrCat(".TH ", absl::AsciiStrToUpper(program.name), " 1 \"\" \"",
                   Roff(version), "\"\n.SH NAME\n", program.name, " \\- ",
                   Roff(FirstSentence(program.help)), "\n.SH SYNOPSIS\n\\fB",
                   program.name, "\\fR COMMAND [FLAGS]\n.SH DESCRIPTION\n",
                   Roff(program.help), "\n.SH COMMANDS\n");
  for (const Command* const command : AllOf(program)) {
    if (command->commands.empty()) AppendCommand(*command, &page);
  }
  return page;
}

}  // namespace slackline
