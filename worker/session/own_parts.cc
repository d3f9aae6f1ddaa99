#include "worker/session/own_parts.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "common/checkpoint/checkpoint_folder.h"
#include "common/checkpoint/kept_file.h"
#include "common/status.h"
#include "common/timeline/event_names.h"

namespace slackline {

OwnParts::OwnParts(const Options& options, WorkerLoop* loop,
                   const ParameterMemory* parameters)
    : options_(options), loop_(*loop), parameters_(*parameters) {}

void OwnParts::WriteState(int32_t cut, Clock clock, Replica& replica) {
  const absl::Time begin = loop_.Now();
  const auto tell = [this, cut,
                     begin](const absl::StatusOr<checkpoint::Part>& written) {
    options_.track->Add({.name = timeline_names::kWritePart,
                         .begun = begin,
                         .until = loop_.Now(),
                         .number = cut});
    wire::CutPart part;
    part.set_cut(cut);
    if (written.ok()) {
      *part.mutable_part() = *written;
    } else {
      part.set_error(std::string(written.status().message()));
    }
    Tell(part);
  };
  const absl::StatusOr<std::string> folder = FolderOf(cut);
  if (!folder.ok()) {
    tell(folder.status());
    return;
  }
  const std::shared_ptr<const View> view = loop_.view();
  std::vector<ShardState> shards;
  for (int32_t shard = 0; shard < view->shard_count(); ++shard) {
    const ShardRange& range = view->shard(ShardId{shard});
    absl::StatusOr<ShardValue> state = replica.CopyOut(*view, ShardId{shard});
    if (!state.ok()) {
      tell(state.status());
      return;
    }
    shards.push_back({.table = view->table(range.table).name(),
                      .region = range.region,
                      .version = state->version,
                      .values = std::move(state->values),
                      .slots = std::move(state->slots)});
  }
  spdlog::info(
      "checkpoint: copied the state of step {}, {:.1f} MB, in {:.1f} ms", clock,
      static_cast<double>(replica.bytes()) / 1e6,
      absl::ToDoubleMilliseconds(loop_.Now() - begin));
  writer().Write(
      {.folder = *folder,
       .file = absl::StrCat("worker-", static_cast<int>(options_.rank),
                            ".safetensors"),
       .shards = std::move(shards),
       .done = tell});
}

void OwnParts::WriteOwn(const WorkerCore::KeepProgram& keep,
                        std::vector<GradientCompressor::Residual> residuals) {
  Waiting of = {.keep = keep, .residuals = std::move(residuals)};
  if (!options_.keeps_state) return Write(std::move(of), std::nullopt);
  waiting_ = std::move(of);
}

std::optional<WorkerCore::KeepProgram> OwnParts::Ask() {
  if (!waiting_.has_value() || std::exchange(waiting_->asked, true))
    return std::nullopt;
  return waiting_->keep;
}

void OwnParts::Kept(int32_t cut, absl::StatusOr<std::string> state) {
  if (!waiting_.has_value() || waiting_->keep.cut != cut || !waiting_->asked)
    return;
  Waiting of = *std::move(waiting_);
  waiting_.reset();
  if (!state.ok()) return Write(std::move(of), state.status());
  Write(std::move(of), std::optional<std::string>(*std::move(state)));
}

void OwnParts::Write(
    Waiting of, const absl::StatusOr<std::optional<std::string>>& program) {
  const auto tell = [this, cut = of.keep.cut](
                        const absl::StatusOr<checkpoint::Kept>& written) {
    wire::CutPart part;
    part.set_cut(cut);
    if (written.ok()) {
      *part.mutable_kept() = *written;
    } else {
      part.set_kept_error(std::string(written.status().message()));
    }
    Tell(part);
  };
  const absl::StatusOr<std::string> folder = FolderOf(of.keep.cut);
  if (!folder.ok()) return tell(folder.status());
  if (!program.ok()) return tell(program.status());
  WorkerState state = {.program = *program};
  for (GradientCompressor::Residual& residual : of.residuals) {
    const wire::Table& table =
        parameters_.tables()[static_cast<size_t>(residual.table)];
    state.residuals.push_back({.table = table.name(),
                               .region = RegionOf(table),
                               .values = std::move(residual.floats)});
  }
  writer().Write(
      PartWriter::KeptJob{.folder = *folder,
                          .rank = static_cast<int32_t>(options_.rank),
                          .state = std::move(state),
                          .done = tell});
}

absl::StatusOr<std::optional<std::string>> OwnParts::Find(
    GradientCompressor* compressor) {
  std::string folder;
  std::string sha256;
  loop_.Tell([&](WorkerCore& core, absl::Time, WorkerCore::Effects*) {
    folder = core.member().checkpoint();
    sha256 = core.member().checkpoint_sha256();
  });
  if (folder.empty()) return std::nullopt;
  SL_ASSIGN_OR_RETURN(
      WorkerState found,
      FindKept(folder, sha256, static_cast<int32_t>(options_.rank)));
  SL_RETURN_IF_ERROR(BeginWith(found.residuals, compressor));
  if (!options_.keeps_state) return std::nullopt;
  if (!found.program.has_value()) {
    spdlog::info(
        "checkpoint {} has nothing of the program of worker {}, which begins "
        "anew beside its parameters",
        folder, static_cast<int>(options_.rank));
    return std::nullopt;
  }
  spdlog::info("the program goes on with {} bytes of its own from {}",
               found.program->size(), folder);
  return std::move(found.program);
}

absl::Status OwnParts::BeginWith(const std::vector<ShardState>& residuals,
                                 GradientCompressor* compressor) const {
  std::vector<GradientCompressor::Residual> found;
  for (const ShardState& residual : residuals) {
    const auto& tables = parameters_.tables();
    const auto table = absl::c_find_if(tables, [&](const wire::Table& of) {
      return of.name() == residual.table;
    });
    if (table == tables.end()) continue;
    found.push_back(
        {.table = TableId{static_cast<int32_t>(table - tables.begin())},
         .floats = residual.values});
  }
  if (!found.empty()) {
    spdlog::info(
        "error feedback goes on with what it had kept of the gradients of {} "
        "tables",
        found.size());
  }
  return compressor->GoOnWith(found);
}

absl::StatusOr<std::string> OwnParts::FolderOf(int32_t cut) const {
  const std::string root = CheckpointRoot(options_.config, options_.out);
  if (root.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", static_cast<int>(options_.rank),
        " has no folder for checkpoints; start it with --out, or name one in "
        "checkpoint { folder: ... }"));
  }
  return PartialFolder(root, loop_.view()->proto().run(), cut);
}

void OwnParts::Tell(const wire::CutPart& part) {
  loop_.Tell(
      [&](WorkerCore& core, absl::Time now, WorkerCore::Effects* effects) {
        core.OnCutPart(part, now, effects);
      });
}

PartWriter& OwnParts::writer() {
  if (writer_ == nullptr) writer_ = std::make_unique<PartWriter>();
  return *writer_;
}

}  // namespace slackline
