#include "common/config/parse_text.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/config/field_names.h"
#include "common/status.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "google/protobuf/text_format.h"

namespace slackline {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;
using google::protobuf::io::Tokenizer;

// Deeper than any valid config. TextFormat has a limit too, but not for what it
// skips because it is unknown, and a hostile file could use up the stack there.
constexpr int kNestingMax = 32;

std::string Place(absl::string_view file_name, int line, int column) {
  return absl::StrCat(file_name, ":", line + 1, ":", column + 1);
}

struct Diagnostic {
  int line = 0;  // From 0, as Protobuf counts.
  int column = 0;
  std::string text;
};

// Unknown fields arrive as warnings, everything else as errors.
class Diagnostics : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (list_.size() < kDiagnosticsMax) {
      list_.push_back({line, column, message});
    }
  }
  void AddWarning(int line, int column, const std::string& message) override {
    AddError(line, column, message);
  }
  const std::vector<Diagnostic>& list() const { return list_; }

 private:
  static constexpr size_t kDiagnosticsMax = 50;  // Nobody reads more.
  std::vector<Diagnostic> list_;
};

// Makes the same tokens as TextFormat::Parser.
class Tokens {
 public:
  explicit Tokens(const std::string& text)
      : input_(text.data(), static_cast<int>(text.size())),
        tokenizer_(&input_, &ignored_) {
    tokenizer_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    tokenizer_.set_allow_f_after_float(true);
  }
  // False at the end; current() then is the end itself.
  bool Next() { return tokenizer_.Next(); }
  const Tokenizer::Token& current() { return tokenizer_.current(); }

 private:
  Diagnostics ignored_;  // The parser reports them.
  google::protobuf::io::ArrayInputStream input_;
  Tokenizer tokenizer_;
};

absl::Status CheckNesting(const std::string& text,
                          const std::string& file_name) {
  int depth = 0;
  for (Tokens tokens(text); tokens.Next();) {
    const Tokenizer::Token& token = tokens.current();
    if (token.text == "{" || token.text == "<" || token.text == "[") ++depth;
    if (token.text == "}" || token.text == ">" || token.text == "]") --depth;
    if (depth > kNestingMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(Place(file_name, token.line, token.column),
                       ": blocks are nested more than ", kNestingMax,
                       " deep; no config needs that, look for a missing '}'"));
    }
  }
  return absl::OkStatus();
}

// One token and what it is part of.
struct TokenContext {
  Tokenizer::Token token;
  const Descriptor* message = nullptr;     // Around it; nullptr: unknown.
  const FieldDescriptor* field = nullptr;  // nullptr: unknown, or between two.
  std::string path;                        // Of the field, else of the message.
  bool is_name = false;                    // It names the field.
  int block_line = -1;  // Line on which `message` opened; -1: the file itself.
  // It names no field of `message` but one of a message around that, in a file
  // that lacks a '}'.
  bool is_outside = false;
};

// Retells the grammar just far enough to know the field around each token.
// TextFormat's messages leave that out and often point one token too far.
class ContextScanner {
 public:
  std::vector<TokenContext> Scan(const std::string& text,
                                 const Descriptor& message) {
    OpenBlock(&message, "", -1);
    Tokens tokens(text);
    while (tokens.Next()) Visit(tokens.current());
    Visit(tokens.current());    // The end, so that errors there have a place.
    if (blocks_.size() == 1) {  // Every block is closed.
      for (TokenContext& context : tokens_) context.is_outside = false;
    }
    return std::move(tokens_);
  }

 private:
  struct Block {
    const Descriptor* message = nullptr;
    std::string path;
    int line = -1;
    const FieldDescriptor* field = nullptr;
    std::string field_path;
    bool in_value = false;
    bool in_list = false;
    std::map<std::string, int> seen;  // Fields by name, for list indices.
  };

  // Takes the path by value: it may live in blocks_, which moves here.
  void OpenBlock(const Descriptor* message, std::string path, int line) {
    Block block;
    block.message = message;
    block.path = std::move(path);
    block.line = line;
    blocks_.push_back(std::move(block));
  }

  void Visit(const Tokenizer::Token& token) {
    Block& block = blocks_.back();
    const std::string& text = token.text;
    const bool opens = text == "{" || text == "<";
    const bool closes = text == "}" || text == ">";
    // A scalar ends where the next name or block end stands; strings may have
    // several parts and numbers a sign, which are no identifiers.
    if (!block.in_value && token.type == Tokenizer::TYPE_IDENTIFIER) {
      StartField(&block, text);
      Add(token, block, /*is_name=*/true);
      return;
    }
    Add(token, block, /*is_name=*/false);
    if (opens) {
      block.in_value = block.in_list;
      OpenBlock(block.field == nullptr ? nullptr : block.field->message_type(),
                block.field_path, token.line);
    } else if (closes) {
      if (blocks_.size() > 1) blocks_.pop_back();
    } else if (text == "[") {
      block.in_list = block.in_value = true;
    } else if (text == "]") {
      block.in_list = block.in_value = false;
    } else if (text == "," && block.in_list) {
      if (block.field != nullptr && block.field->is_repeated()) {
        block.field_path =
            FieldPath(block.path, *block.field,
                      block.seen[std::string(block.field->name())]++);
      }
    } else if (text != ":" && text != "-") {
      block.in_value = block.in_list;
    }
  }

  static void StartField(Block* block, const std::string& name) {
    block->field = block->message == nullptr
                       ? nullptr
                       : block->message->FindFieldByName(name);
    const int index = block->seen[name]++;
    block->field_path =
        block->field != nullptr
            ? FieldPath(block->path, *block->field, index)
            : absl::StrCat(block->path, block->path.empty() ? "" : ".", name);
    block->in_value = true;
  }

  void Add(const Tokenizer::Token& token, const Block& block, bool is_name) {
    const bool in_field = block.in_value && !block.field_path.empty();
    tokens_.push_back({token, block.message, in_field ? block.field : nullptr,
                       in_field ? block.field_path : block.path, is_name,
                       block.line,
                       is_name && block.message != nullptr &&
                           block.field == nullptr && IsOutside(token.text)});
  }

  // A field of a message around the innermost one has this name.
  bool IsOutside(const std::string& name) const {
    return std::any_of(blocks_.begin(), blocks_.end() - 1,
                       [&](const Block& block) {
                         return block.message != nullptr &&
                                block.message->FindFieldByName(name) != nullptr;
                       });
  }

  std::vector<Block> blocks_;
  std::vector<TokenContext> tokens_;
};

// True if the message quotes the token's text, and so is about that token.
bool IsAbout(const TokenContext& context, const std::string& message) {
  return !context.token.text.empty() &&
         absl::StrContains(message,
                           absl::StrCat("\"", context.token.text, "\""));
}

// The token that the diagnostic is about. TextFormat reports an unknown field,
// enum value or truth value at the token after it, but quotes it.
TokenContext FindToken(const std::vector<TokenContext>& tokens,
                       const Diagnostic& diagnostic) {
  const auto place = [](int line, int column) {
    return std::pair(line, column);
  };
  const auto reported = place(diagnostic.line, diagnostic.column);
  size_t i = 0;
  while (i + 1 < tokens.size() &&
         place(tokens[i + 1].token.line, tokens[i + 1].token.column) <=
             reported) {
    ++i;
  }
  if (place(tokens[i].token.line, tokens[i].token.column) != reported) {
    // A token that is wrong in itself is reported where it breaks off.
    TokenContext context = tokens[i];
    context.token.line = diagnostic.line;
    context.token.column = diagnostic.column;
    return context;
  }
  const bool about_previous = i > 0 && !IsAbout(tokens[i], diagnostic.text) &&
                              IsAbout(tokens[i - 1], diagnostic.text);
  return tokens[about_previous ? i - 1 : i];
}

std::string DiagnosticText(const TokenContext& context,
                           const std::string& message) {
  const std::string& token = context.token.text;
  if (context.token.type == Tokenizer::TYPE_END && context.block_line >= 0) {
    return absl::StrCat("the file ends inside this block; close the block of ",
                        "line ", context.block_line + 1, " with '}'");
  }
  if (context.is_outside) {
    return absl::StrCat("'", token,
                        "' is no field of this block but of one around it; "
                        "the block of line ",
                        context.block_line + 1, " lacks its '}'");
  }
  if (context.is_name && context.message != nullptr &&
      context.field == nullptr) {
    return UnknownFieldText(*context.message, token);
  }
  const bool about_value = absl::StrContains(message, ", got: ") ||
                           absl::StartsWith(message, "Integer out of range") ||
                           absl::StartsWith(message, "Unknown enumeration") ||
                           absl::StartsWith(message, "Invalid value for bool");
  if (about_value && !context.is_name && context.field != nullptr) {
    return absl::StrCat("value is ", token, "; ",
                        ExpectedValueText(*context.field), " is required");
  }
  std::string text = message;
  if (!text.empty())
    text[0] = absl::ascii_tolower(static_cast<unsigned char>(text[0]));
  while (!text.empty() && text.back() == '.') text.pop_back();
  return text;
}

absl::Status ToStatus(const std::string& file_name, const std::string& text,
                      const Descriptor& message,
                      const std::vector<Diagnostic>& diagnostics) {
  const std::vector<TokenContext> tokens = ContextScanner().Scan(text, message);
  std::vector<std::string> lines;
  for (const Diagnostic& diagnostic : diagnostics) {
    const TokenContext context = FindToken(tokens, diagnostic);
    lines.push_back(
        absl::StrCat(Place(file_name, context.token.line, context.token.column),
                     ": ", context.path, context.path.empty() ? "" : ": ",
                     DiagnosticText(context, diagnostic.text)));
    if (context.is_outside) break;  // The rest follows from the missing '}'.
  }
  return absl::InvalidArgumentError(absl::StrJoin(lines, "\n"));
}

void CollectOrigins(const Message& message,
                    const TextFormat::ParseInfoTree& tree,
                    const std::string& file_name, const std::string& path,
                    FieldOrigins* origins) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const bool repeated = field->is_repeated();
    const int count = repeated ? reflection.FieldSize(message, field) : 1;
    for (int i = 0; i < count; ++i) {
      const int index = repeated ? i : -1;
      const std::string field_path = FieldPath(path, *field, i);
      // A list in brackets has one place, at its first element.
      const TextFormat::ParseLocation location = tree.GetLocation(field, index);
      if (location.line >= 0) {
        const std::string place =
            Place(file_name, location.line, location.column);
        origins->Set(field_path, place);
        if (i == 0) origins->Set(FieldPath(path, *field, -1), place);
      }
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) continue;
      const TextFormat::ParseInfoTree* nested =
          tree.GetTreeForNested(field, index);
      if (nested == nullptr) continue;
      CollectOrigins(repeated ? reflection.GetRepeatedMessage(message, field, i)
                              : reflection.GetMessage(message, field),
                     *nested, file_name, field_path, origins);
    }
  }
}

}  // namespace

namespace {

// What editors of some systems write in front of a text, or as all of it.
absl::Status CheckEncoding(absl::string_view text,
                           const std::string& file_name) {
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ":1:1: the file ", what,
                     "; save it as UTF-8 without a byte order mark, as in "
                     "`iconv -t UTF-8`"));
  };
  if (absl::StartsWith(text, "\xEF\xBB\xBF"))
    return wrong("begins with a byte order mark");
  if (absl::StartsWith(text, "\xFF\xFE") ||
      absl::StartsWith(text, "\xFE\xFF") ||
      text.substr(0, 4).find('\0') != absl::string_view::npos) {
    return wrong("is UTF-16, or no text");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ParseConfigText(const std::string& text,
                             const std::string& file_name, Message* message,
                             FieldOrigins* origins) {
  SL_RETURN_IF_ERROR(CheckEncoding(text, file_name));
  SL_RETURN_IF_ERROR(CheckNesting(text, file_name));
  Diagnostics diagnostics;
  TextFormat::ParseInfoTree tree;
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&diagnostics);
  parser.WriteLocationsTo(&tree);
  // An unknown field then does not end parsing, so all are found in one go;
  // each still fails the parse below.
  parser.AllowUnknownField(true);
  message->Clear();
  const bool parsed = parser.ParseFromString(text, message);
  if (!parsed || !diagnostics.list().empty()) {
    return ToStatus(file_name, text, *message->GetDescriptor(),
                    diagnostics.list());
  }
  CollectOrigins(*message, tree, file_name, "", origins);
  return absl::OkStatus();
}

}  // namespace slackline
