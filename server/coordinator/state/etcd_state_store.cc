#include "server/coordinator/state/etcd_state_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/shortened.h"
#include "common/status.h"
#include "server/coordinator/state/state_batch.h"

namespace slackline {
namespace {

using Entry = EtcdClient::Entry;
using Transaction = EtcdClient::Transaction;

constexpr absl::string_view kLeader = "/leader";
constexpr absl::string_view kHead = "/head";
constexpr uint64_t kFormat = 1;
// Of a batch in one entry. A request is bounded by etcd's --max-request-bytes,
// 1.5 MiB if nobody changes it.
constexpr size_t kPartBytes = size_t{512} << 10;
// So many entries are read at once: within 4 MiB, which is what gRPC receives
// if nobody changes it, and with base 64 within EtcdClient::kAnswerBytesMax.
constexpr int64_t kPartsOfRead = 6;
// A log is written anew when it is so many times as long as the batch that it
// begins with, and so many bytes; or has so many batches.
constexpr size_t kGrowth = 4;
constexpr size_t kGrowthBytes = size_t{1} << 20;
constexpr uint64_t kBatchesMax = 1000;
constexpr absl::Duration kLookEvery = absl::Milliseconds(200);
constexpr size_t kHolderBytesShown = 200;
// A leader that writes a log anew does so after some thousand commits.
constexpr int kReadsMax = 5;

size_t RewriteAbove(size_t bytes) { return kGrowth * bytes + kGrowthBytes; }

// "tcp://host:port process 123 of host a", for people.
std::string LeaderText(const Entry& entry) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(entry.value, absl::MaxSplits(' ', 1));
  return absl::CHexEscape(absl::StrCat(
      "the coordinator at ", Shortened(parts.first, kHolderBytesShown), " in ",
      Shortened(parts.second, kHolderBytesShown)));
}

std::string HeadText(uint64_t first, uint64_t last) {
  return absl::StrCat(kFormat, " ", first, " ", last);
}

// The first and the last batch.
std::optional<std::pair<uint64_t, uint64_t>> ParseHead(
    const std::string& text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, ' ');
  uint64_t first = 0;
  uint64_t last = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &first) ||
      !absl::SimpleAtoi(parts[2], &last) || first == 0 || first > last ||
      last > uint64_t{1} << 62 || text != HeadText(first, last)) {
    return std::nullopt;
  }
  return std::pair(first, last);
}

absl::Status Broken(const std::string& key, absl::string_view what) {
  return absl::DataLossError(absl::StrCat(
      "etcd's key ", key, ": ", what,
      "; the state is damaged or not one of a coordinator: remove what is "
      "below the prefix, and go on from a checkpoint"));
}

absl::Status CheckOptions(const EtcdStateStore::Options& options) {
  if (options.prefix.empty() || options.prefix.back() == '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("etcd prefix '", options.prefix,
                     "' must have a name and no slash at its end, as in "
                     "'/slackline/JOB'"));
  }
  if (options.lease < absl::Seconds(1)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the lease in etcd is ", absl::FormatDuration(options.lease),
        "; at least 1s is required"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<EtcdStateStore>> EtcdStateStore::Create(
    const Options& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStateStore> store, Lead(options));
  SL_RETURN_IF_ERROR(store->ReadHead(/*replaces=*/true));
  SL_ASSIGN_OR_RETURN(const std::string empty, EncodeBatch(CoordinatorState()));
  SL_RETURN_IF_ERROR(store->Write(empty, store->last_ + 1));
  return store;
}

absl::StatusOr<std::unique_ptr<EtcdStateStore>> EtcdStateStore::Open(
    const Options& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStateStore> store, Lead(options));
  SL_RETURN_IF_ERROR(store->ReadHead(/*replaces=*/false));
  SL_RETURN_IF_ERROR(store->ReadLog());
  return store;
}

EtcdStateStore::~EtcdStateStore() {
  // Ends by itself, too, if etcd does not hear of this.
  if (lease_.id != 0 && !absl::IsUnavailable(failed_))
    (void)keep_alive_client_->Revoke(lease_.id);
}

absl::Status EtcdStateStore::Commit(const std::vector<StateChange>& changes) {
  if (!failed_.ok() || changes.empty()) return failed_;
  absl::StatusOr<std::string> batch = EncodeBatch(changes);
  failed_ = batch.ok() ? Write(*batch, first_) : batch.status();
  if (!failed_.ok()) return failed_;
  ApplyChanges(changes, &state_);
  if (bytes_ > rewrite_above_ || last_ - first_ >= kBatchesMax) {
    batch = EncodeBatch(state_);
    failed_ = batch.ok() ? Write(*batch, last_ + 1) : batch.status();
  }
  return failed_;
}

absl::Status EtcdStateStore::KeepAlive() {
  SL_ASSIGN_OR_RETURN(const bool kept,
                      keep_alive_client_->KeepAlive(lease_.id));
  if (kept) return absl::OkStatus();
  const absl::StatusOr<std::optional<Entry>> leader =
      keep_alive_client_->Get(Key(kLeader));
  return NotLeader(leader.ok() ? *leader : std::nullopt);
}

// ---- Leading ----------------------------------------------------------------

absl::StatusOr<std::unique_ptr<EtcdStateStore>> EtcdStateStore::Connect(
    const Options& options) {
  SL_RETURN_IF_ERROR(CheckOptions(options));
  SL_ASSIGN_OR_RETURN(std::unique_ptr<EtcdClient> client,
                      EtcdClient::Create(options.etcd));
  return std::unique_ptr<EtcdStateStore>(
      new EtcdStateStore(options, std::move(client)));
}

absl::StatusOr<bool> EtcdStateStore::IsLed(const Options& options) {
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<EtcdStateStore> store,
                      Connect(options));
  SL_ASSIGN_OR_RETURN(const std::optional<Entry> leader,
                      store->client_->Get(store->Key(kLeader)));
  return leader.has_value();
}

absl::StatusOr<CoordinatorState> EtcdStateStore::Read(const Options& options) {
  absl::Status broken;
  for (int i = 0; i < kReadsMax; ++i) {
    SL_ASSIGN_OR_RETURN(const std::unique_ptr<EtcdStateStore> store,
                        Connect(options));
    broken = store->ReadHead(/*replaces=*/false);
    if (broken.ok()) broken = store->ReadLog();
    if (broken.ok()) return store->state_;
    if (!absl::IsDataLoss(broken)) return broken;
  }
  return broken;
}

absl::StatusOr<std::unique_ptr<EtcdStateStore>> EtcdStateStore::Lead(
    const Options& options) {
  SL_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStateStore> store, Connect(options));
  SL_RETURN_IF_ERROR(store->BecomeLeader());
  return store;
}

absl::Status EtcdStateStore::BecomeLeader() {
  const TimeSource time;
  const absl::Time deadline = time.Now() + options_.wait_max;
  bool said = false;
  while (true) {
    SL_ASSIGN_OR_RETURN(const std::optional<Entry> leader,
                        client_->Get(Key(kLeader)));
    if (!leader.has_value()) {
      SL_ASSIGN_OR_RETURN(const bool leads, TryToLead());
      if (leads) return absl::OkStatus();
    } else if (time.Now() >= deadline) {
      return absl::FailedPreconditionError(absl::StrCat(
          "the job's state in etcd below ", options_.prefix, " belongs to ",
          LeaderText(*leader), ", whose lease has not ended within ",
          absl::FormatDuration(options_.wait_max), "; end it first"));
    } else if (!std::exchange(said, true)) {
      spdlog::info(
          "the job's state in etcd below {} belongs to {}; the end of its "
          "lease "
          "is waited for, up to {}",
          options_.prefix, LeaderText(*leader),
          absl::FormatDuration(options_.wait_max));
    }
    absl::SleepFor(kLookEvery);
  }
}

absl::StatusOr<bool> EtcdStateStore::TryToLead() {
  SL_ASSIGN_OR_RETURN(
      const EtcdClient::Lease lease,
      client_->GrantLease(absl::Ceil(options_.lease, absl::Seconds(1))));
  EtcdClient::Options for_keep_alive = options_.etcd;
  for_keep_alive.timeout =
      std::min(for_keep_alive.timeout,
               absl::Trunc(lease.ttl / 3, absl::Milliseconds(1)));
  SL_ASSIGN_OR_RETURN(keep_alive_client_, EtcdClient::Create(for_keep_alive));
  lease_ = lease;
  SL_ASSIGN_OR_RETURN(
      const EtcdClient::TransactionResult result,
      client_->Transact(
          {.if_all = {{Key(kLeader), "CREATE", 0}},
           .puts = {{Key(kLeader),
                     absl::StrCat(options_.endpoint, " ", ThisProcess()),
                     lease.id}},
           .removals = {},
           .else_get = {Key(kLeader)}}));
  if (result.made) {
    leader_revision_ = result.revision;
    return true;
  }
  // A try before, whose answer was lost, may have made it.
  if (const auto& leader = result.found.front();
      leader.has_value() && leader->lease == lease.id) {
    leader_revision_ = leader->create_revision;
    return true;
  }
  (void)client_->Revoke(lease.id);
  lease_ = {};
  return false;
}

absl::Status EtcdStateStore::NotLeader(
    const std::optional<Entry>& leader) const {
  return absl::FailedPreconditionError(absl::StrCat(
      "this coordinator does not lead any more: its lease in etcd below ",
      options_.prefix, " is over, which it has to renew at least every ",
      absl::FormatDuration(lease_.ttl),
      leader.has_value() ? absl::StrCat("; ", LeaderText(*leader), " leads")
                         : ""));
}

// ---- The log ----------------------------------------------------------------

std::string EtcdStateStore::Key(absl::string_view name) const {
  return absl::StrCat(options_.prefix, name);
}

std::string EtcdStateStore::LogKey(uint64_t batch, uint64_t part) const {
  return absl::StrFormat("%s/log/%016x/%08x", options_.prefix, batch, part);
}

absl::Status EtcdStateStore::ReadHead(bool replaces) {
  SL_ASSIGN_OR_RETURN(const std::optional<Entry> head,
                      client_->Get(Key(kHead)));
  if (!head.has_value() && !replaces) {
    return absl::NotFoundError(
        absl::StrCat("etcd's key ", Key(kHead), " is not there"));
  }
  if (head.has_value()) {
    head_revision_ = head->mod_revision;
    if (const auto batches = ParseHead(head->value); batches.has_value()) {
      std::tie(first_, last_) = *batches;
    } else if (!replaces) {
      return Broken(
          Key(kHead),
          absl::StrCat("'", absl::CHexEscape(Shortened(head->value, 80)),
                       "' is not '", kFormat, " FIRST LAST'"));
    }
  }
  if (!leads()) return absl::OkStatus();
  // Of batches that an earlier leader has not completed: parts of them must not
  // be taken for parts of others.
  return Transact(
      {.if_all = {},
       .puts = {},
       .removals = {{LogKey(last_ + 1, 0), Key("/log0")}},  // '0' follows '/'.
       .else_get = {}},
      "");
}

absl::Status EtcdStateStore::ReadLog() {
  uint64_t batch = first_;
  uint64_t part = 0;
  std::string bytes;  // Of the batch, as far as they are read.
  std::string next = LogKey(first_, 0);
  const TimeSource time;
  absl::Time kept_alive = time.Now();
  while (batch <= last_) {
    // Nobody else can, as long as it is not open.
    if (leads() && time.Now() - kept_alive > keep_alive_every()) {
      SL_RETURN_IF_ERROR(KeepAlive());
      kept_alive = time.Now();
    }
    SL_ASSIGN_OR_RETURN(
        const std::vector<Entry> entries,
        client_->Range(next, LogKey(last_ + 1, 0), kPartsOfRead));
    if (entries.empty()) return Broken(LogKey(batch, part), "is not there");
    for (const Entry& entry : entries) {
      if (entry.key != LogKey(batch, part))
        return Broken(LogKey(batch, part), "is not there");
      bytes_ += entry.value.size();
      if (bytes_ > kStateBytesMax) {
        return Broken(entry.key, absl::StrCat("with it the log has more than ",
                                              kStateBytesMax, " bytes"));
      }
      absl::StrAppend(&bytes, entry.value);
      const absl::StatusOr<size_t> applied = ApplyBatch(bytes, &state_);
      if (!applied.ok()) return Broken(entry.key, applied.status().message());
      ++part;
      if (*applied == 0) continue;
      if (*applied != bytes.size()) {
        return Broken(entry.key,
                      absl::StrCat("has ", bytes.size() - *applied,
                                   " bytes behind the end of its batch"));
      }
      if (batch == first_) rewrite_above_ = RewriteAbove(bytes.size());
      bytes.clear();
      ++batch;
      part = 0;
    }
    next = LogKey(batch, part);
  }
  return absl::OkStatus();
}

absl::Status EtcdStateStore::Write(const std::string& batch, uint64_t first) {
  const uint64_t number = last_ + 1;
  absl::string_view rest = batch;
  uint64_t part = 0;
  for (; rest.size() > kPartBytes; rest.remove_prefix(kPartBytes), ++part) {
    SL_RETURN_IF_ERROR(
        Transact({.if_all = {},
                  .puts = {{LogKey(number, part),
                            std::string(rest.substr(0, kPartBytes))}},
                  .removals = {},
                  .else_get = {}},
                 ""));
  }
  Transaction last = {.if_all = {{Key(kHead), "MOD", head_revision_}},
                      .puts = {{LogKey(number, part), std::string(rest)},
                               {Key(kHead), HeadText(first, number)}},
                      .removals = {},
                      .else_get = {}};
  if (first > first_) last.removals = {{Key("/log/"), LogKey(first, 0)}};
  SL_RETURN_IF_ERROR(Transact(std::move(last), HeadText(first, number)));
  if (first > first_) bytes_ = 0;
  if (first == number) rewrite_above_ = RewriteAbove(batch.size());
  bytes_ += batch.size();
  first_ = first;
  last_ = number;
  return absl::OkStatus();
}

// If this leads. `head` is the head that it writes, if it writes one.
absl::Status EtcdStateStore::Transact(Transaction transaction,
                                      const std::string& head) {
  transaction.if_all.push_back({Key(kLeader), "CREATE", leader_revision_});
  transaction.else_get = {Key(kLeader), Key(kHead)};
  SL_ASSIGN_OR_RETURN(const EtcdClient::TransactionResult result,
                      client_->Transact(transaction));
  if (result.made) {
    if (!head.empty()) head_revision_ = result.revision;
    return absl::OkStatus();
  }
  const std::optional<Entry>& leader = result.found[0];
  if (!leader.has_value() || leader->create_revision != leader_revision_)
    return NotLeader(leader);
  // A try before, whose answer was lost, may have written it.
  const std::optional<Entry>& found = result.found[1];
  if (!head.empty() && found.has_value() && found->value == head) {
    head_revision_ = found->mod_revision;
    return absl::OkStatus();
  }
  return Broken(Key(kHead), "was changed by somebody who does not lead");
}

}  // namespace slackline
