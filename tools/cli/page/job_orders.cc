#include "tools/cli/page/job_orders.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/config/cluster_config.h"
#include "common/status.h"
#include "common/time/time_source.h"
#include "common/view/shard_map.h"
#include "tools/cli/job/shard_selection.h"
#include "tools/cli/job/stacks.h"

namespace slackline {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kOrdered[] = "ordered on the page";

absl::StatusOr<std::string> TextField(const Json& order, const char* name) {
  const auto field = order.find(name);
  if (field == order.end() || !field->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the order lacks the text '", name, "'"));
  }
  return field->get<std::string>();
}

std::string PlanSentence(const run::Plan& plan) {
  if (plan.move_size() == 0) return "nothing is to be moved";
  return absl::StrCat(plan.move_size(),
                      plan.move_size() == 1 ? " move is" : " moves are",
                      " ordered");
}

}  // namespace

absl::StatusOr<std::string> JobOrders::Give(const Json& order) {
  if (!order.is_object())
    return absl::InvalidArgumentError("an order is a JSON object");
  SL_ASSIGN_OR_RETURN(const std::string name, TextField(order, "order"));
  CoordinatorClient& client = job_->client();
  const absl::Duration wait_max = job_->wait_max();
  if (name == "mode") {
    SL_ASSIGN_OR_RETURN(const std::string text, TextField(order, "mode"));
    SL_ASSIGN_OR_RETURN(const wire::SetMode mode, ParseMode(text));
    return client.SetMode(mode, wait_max);
  }
  if (name == "move") return Move(order);
  if (name == "drain") return Drain(order);
  if (name == "rebalance") {
    SL_ASSIGN_OR_RETURN(const run::Plan plan,
                        client.Rebalance(/*dry_run=*/false, wait_max));
    return PlanSentence(plan);
  }
  if (name == "checkpoint") return Checkpoint();
  if (name == "stacks") return Stacks(order);
  if (name == "finish") return client.Finish(kOrdered, wait_max);
  if (name == "suspend") {
    SL_RETURN_IF_ERROR(client.Suspend(kOrdered, wait_max));
    return "the job takes a checkpoint, then it ends";
  }
  if (name == "stop") {
    SL_RETURN_IF_ERROR(client.Stop(kOrdered, wait_max));
    return "the job stops at once";
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "'", name,
      "' is no order; there are mode, move, drain, rebalance, checkpoint, "
      "finish, suspend, stop and stacks"));
}

absl::StatusOr<std::string> JobOrders::Move(const Json& order) {
  SL_ASSIGN_OR_RETURN(const std::string shards, TextField(order, "shards"));
  SL_ASSIGN_OR_RETURN(const std::string to, TextField(order, "to"));
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const View> view,
                      View::Create(job_->status().view()));
  const std::vector<std::string> words =
      absl::StrSplit(shards, ' ', absl::SkipWhitespace());
  if (words.empty())
    return absl::InvalidArgumentError("which shards? None is named");
  SL_ASSIGN_OR_RETURN(const std::vector<int32_t> selected,
                      SelectShards(*view, words));
  SL_ASSIGN_OR_RETURN(const Owner target, SelectTarget(*view, to));
  wire::MoveShards move;
  move.mutable_shard()->Add(selected.begin(), selected.end());
  move.set_server(target.server);
  move.set_thread(target.thread);
  SL_ASSIGN_OR_RETURN(const run::Plan plan,
                      job_->client().MoveShards(move, job_->wait_max()));
  return PlanSentence(plan);
}

absl::StatusOr<std::string> JobOrders::Drain(const Json& order) {
  const auto server = order.find("server");
  if (server == order.end() || !server->is_number_integer() || *server < 0 ||
      *server > 1000000) {
    return absl::InvalidArgumentError(
        "the order lacks the index of the server as 'server'");
  }
  const int index = server->get<int>();
  SL_ASSIGN_OR_RETURN(const std::shared_ptr<const View> view,
                      View::Create(job_->status().view()));
  SL_RETURN_IF_ERROR(CheckServer(*view, index));
  SL_ASSIGN_OR_RETURN(const run::Plan plan,
                      job_->client().Drain(index, job_->wait_max()));
  return absl::StrCat(PlanSentence(plan), "; server ", index,
                      " leaves when it has given its shards away");
}

absl::StatusOr<std::string> JobOrders::Checkpoint() {
  // Refused, it is over: the next call would be another order.
  takes_checkpoint_ = false;
  SL_ASSIGN_OR_RETURN(const std::optional<std::string> text,
                      job_->client().Checkpoint(absl::Milliseconds(200)));
  takes_checkpoint_ = !text.has_value();
  return text.value_or("a checkpoint is ordered");
}

absl::StatusOr<std::string> JobOrders::Stacks(const Json& order) {
  SL_ASSIGN_OR_RETURN(const std::string of, TextField(order, "of"));
  SL_ASSIGN_OR_RETURN(const wire::MemberName name, ParseMemberName(of));
  SL_ASSIGN_OR_RETURN(
      StacksQuestion question,
      StacksQuestion::Ask(&job_->client(), {name}, job_->wait_max()));
  const TimeSource time;
  const absl::Time until = time.Now() + StacksQuestion::kPatience;
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<wire::Inspected> inspected,
                        question.Next());
    if (inspected.has_value()) return StacksText(*inspected);
    if (question.over()) {
      return absl::UnavailableError(question.gone().empty()
                                        ? absl::StrCat(of, " is gone")
                                        : question.gone().front());
    }
    if (time.Now() >= until)
      return absl::DeadlineExceededError(absl::StrCat(of, " does not answer"));
    absl::SleepFor(absl::Milliseconds(20));
  }
}

void JobOrders::Look() {
  // What became of it is in the status.
  if (takes_checkpoint_) (void)Checkpoint();
}

}  // namespace slackline
