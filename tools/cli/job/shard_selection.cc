#include "tools/cli/job/shard_selection.h"

#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "common/status.h"

namespace slackline {
namespace {

// What an error lists; the rest shows as a number.
constexpr size_t kListMax = 12;

std::string ListText(const std::vector<std::string>& all) {
  if (all.size() <= kListMax) return absl::StrJoin(all, ", ");
  return absl::StrCat(absl::StrJoin(all.begin(), all.begin() + kListMax, ", "),
                      " and ", all.size() - kListMax, " more");
}

bool IsNumber(absl::string_view text) {
  return !text.empty() &&
         text.find_first_not_of("0123456789") == absl::string_view::npos;
}

// Spaces are hard to type in a shell.
std::string WithoutSpaces(const std::string& text) {
  return absl::StrReplaceAll(text, {{" ", ""}});
}

absl::StatusOr<int32_t> ShardOf(const View& view, absl::string_view digits,
                                const std::string& word) {
  int32_t shard = 0;
  if (absl::SimpleAtoi(digits, &shard) && view.HasShard(shard)) return shard;
  const std::string there =
      view.shard_count() == 0
          ? "the job has no shards; it is all-reduce or has not started"
          : absl::StrCat("the job has shards 0 to ", view.shard_count() - 1);
  return absl::InvalidArgumentError(absl::StrCat(
      "SHARD '", word, "': there is no shard ", digits, "; ", there));
}

absl::Status NoSuchTable(const View& view, const std::string& name,
                         const std::string& word) {
  std::vector<std::string> names;
  for (const wire::Table& table : view.proto().table()) {
    names.push_back(table.name());
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "SHARD '", word, "': there is no table '", name, "'; ",
      names.empty() ? "the job has none"
                    : absl::StrCat("the tables are ", ListText(names))));
}

// The shards that a table's or a shard's name stands for.
absl::StatusOr<std::vector<int32_t>> ShardsNamed(const View& view,
                                                 const std::string& word) {
  const size_t bracket = word.find('[');
  const std::string name = word.substr(0, bracket);
  for (int t = 0; t < view.proto().table_size(); ++t) {
    if (view.proto().table(t).name() != name) continue;
    std::vector<int32_t> shards;
    std::vector<std::string> names;
    for (const ShardRange& range : view.ShardsOf(TableId{t})) {
      const std::string shard_name = view.ShardName(range.shard);
      names.push_back(shard_name);
      if (bracket == std::string::npos ||
          WithoutSpaces(shard_name) == WithoutSpaces(word)) {
        shards.push_back(static_cast<int32_t>(range.shard));
      }
    }
    if (!shards.empty()) return shards;
    return absl::InvalidArgumentError(
        absl::StrCat("SHARD '", word, "': no shard of table '", name,
                     "' has this range; there are ", ListText(names)));
  }
  return NoSuchTable(view, name, word);
}

absl::StatusOr<std::vector<int32_t>> ShardsOfWord(const View& view,
                                                  const std::string& word) {
  const std::vector<std::string> ends = absl::StrSplit(word, '-');
  if (ends.size() > 2 || !IsNumber(ends.front()) || !IsNumber(ends.back())) {
    return ShardsNamed(view, word);
  }
  SL_ASSIGN_OR_RETURN(const int32_t first, ShardOf(view, ends.front(), word));
  SL_ASSIGN_OR_RETURN(const int32_t last, ShardOf(view, ends.back(), word));
  if (last < first) {
    return absl::InvalidArgumentError(absl::StrCat(
        "SHARD '", word, "': the range is empty; write ", last, "-", first));
  }
  std::vector<int32_t> shards;
  for (int32_t shard = first; shard <= last; ++shard) shards.push_back(shard);
  return shards;
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> SelectShards(
    const View& view, const std::vector<std::string>& words) {
  std::vector<int32_t> selected;
  std::set<int32_t> seen;
  for (const std::string& word : words) {
    SL_ASSIGN_OR_RETURN(const std::vector<int32_t> shards,
                        ShardsOfWord(view, word));
    for (const int32_t shard : shards) {
      if (seen.insert(shard).second) selected.push_back(shard);
    }
  }
  return selected;
}

absl::Status CheckServer(const View& view, int server) {
  std::vector<std::string> servers;
  for (const wire::ServerMember& member : view.servers()) {
    if (member.index() == server) return absl::OkStatus();
    servers.push_back(absl::StrCat(member.index()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "server ", server, " is not in the job; ",
      servers.empty() ? "no server is"
                      : absl::StrCat("its servers are ", ListText(servers))));
}

absl::StatusOr<Owner> SelectTarget(const View& view, const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  Owner target{.server = 0, .thread = -1};
  const bool valid =
      parts.size() <= 2 && IsNumber(parts[0]) && IsNumber(parts.back()) &&
      absl::SimpleAtoi(parts[0], &target.server) &&
      (parts.size() == 1 || absl::SimpleAtoi(parts[1], &target.thread));
  if (!valid) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--to: value is '", text,
        "'; a server, as in 1, or one of its threads, as in 1.0, is required"));
  }
  SL_RETURN_IF_ERROR(Annotate(CheckServer(view, target.server), "--to"));
  const int threads = view.FindServer(target.server)->thread_size();
  if (target.thread < threads) return target;
  return absl::InvalidArgumentError(absl::StrCat(
      "--to: server ", target.server, " has no thread ", target.thread,
      threads == 1 ? "; its only thread is 0"
                   : absl::StrCat("; it has threads 0 to ", threads - 1)));
}

}  // namespace slackline
