#include "common/checkpoint/kept_file.h"

#include <filesystem>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/checkpoint/part_file.h"
#include "common/io/atomic_file.h"
#include "common/io/regular_file.h"
#include "common/io/state_hash.h"
#include "common/shortened.h"
#include "common/status.h"

namespace slackline {
namespace {

absl::StatusOr<std::string> ReadProgram(const std::string& folder,
                                        const checkpoint::Kept& kept) {
  const std::string path = absl::StrCat(folder, "/", kept.file());
  // Not const: up to a GiB is moved out of it.
  absl::StatusOr<std::string> bytes = ReadRegularFile(path, kept.bytes());
  // The manifest says that it is there.
  if (absl::IsNotFound(bytes.status()))
    return absl::DataLossError(bytes.status().message());
  if (!bytes.ok()) {
    return Annotate(bytes.status(),
                    absl::StrCat("the manifest says ", kept.bytes(), " bytes"));
  }
  if (static_cast<int64_t>(bytes->size()) != kept.bytes()) {
    return absl::DataLossError(absl::StrCat(
        path, " has ", bytes->size(), " bytes, and the manifest says ",
        kept.bytes(), "; the file is torn or of another checkpoint"));
  }
  if (const uint64_t hash = BytesHash(bytes->data(), bytes->size());
      hash != kept.hash()) {
    return absl::DataLossError(absl::StrFormat(
        "%s: bytes [0, %d) have the hash %016x, and the manifest says %016x; "
        "the file is damaged",
        path, bytes->size(), hash, kept.hash()));
  }
  return bytes;
}

}  // namespace

absl::StatusOr<checkpoint::Kept> WriteKept(const std::string& folder,
                                           int32_t rank,
                                           const WorkerState& state) {
  checkpoint::Kept kept;
  kept.set_rank(rank);
  if (state.program.has_value()) {
    kept.set_file(absl::StrCat("worker-", rank, ".state"));
    kept.set_bytes(static_cast<int64_t>(state.program->size()));
    kept.set_hash(BytesHash(state.program->data(), state.program->size()));
  }
  if (const std::string why = WhyNoKept(kept); !why.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("write into ", folder, ": ", why));
  }
  if (!state.residuals.empty()) {
    SL_ASSIGN_OR_RETURN(
        *kept.mutable_residuals(),
        WritePart(folder,
                  absl::StrCat("worker-", rank, ".residuals.safetensors"),
                  state.residuals));
  }
  if (!state.program.has_value()) return kept;
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("create ", folder, ": ", error.message()));
  }
  SL_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(folder, "/", kept.file()),
                                         {*state.program}));
  return kept;
}

absl::StatusOr<WorkerState> ReadKept(const std::string& folder,
                                     const checkpoint::Kept& kept) {
  if (const std::string why = WhyNoKept(kept); !why.empty())
    return absl::DataLossError(absl::StrCat(folder, ": ", why));
  WorkerState state;
  if (!kept.file().empty()) {
    SL_ASSIGN_OR_RETURN(state.program, ReadProgram(folder, kept));
  }
  if (!kept.has_residuals()) return state;
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<PartFile> file,
                      PartFile::Open(folder, kept.residuals()));
  for (const PartFile::Piece& piece : file->pieces()) {
    SL_ASSIGN_OR_RETURN(state.residuals.emplace_back(), file->Read(piece));
  }
  return state;
}

absl::Status CheckKept(const std::string& folder,
                       const checkpoint::Kept& kept) {
  checkpoint::Kept of_program = kept;
  of_program.clear_residuals();
  SL_RETURN_IF_ERROR(ReadKept(folder, of_program).status());
  if (!kept.has_residuals()) return absl::OkStatus();
  SL_ASSIGN_OR_RETURN(const std::unique_ptr<PartFile> file,
                      PartFile::Open(folder, kept.residuals()));
  for (const PartFile::Piece& piece : file->pieces())
    SL_RETURN_IF_ERROR(file->Check(piece));
  return absl::OkStatus();
}

absl::StatusOr<WorkerState> FindKept(const std::string& folder,
                                     const std::string& manifest_sha256,
                                     int32_t rank) {
  const auto failed = [&](const auto&... why) {
    return absl::FailedPreconditionError(absl::StrCat(
        "worker ", rank,
        " cannot read what it has in the checkpoint from which the job goes "
        "on: ",
        why...,
        "; the folder has to be seen under the same name by the hosts of all "
        "servers and workers"));
  };
  const absl::StatusOr<checkpoint::Manifest> manifest = ReadManifest(folder);
  if (!manifest.ok()) return failed(manifest.status().message());
  if (const std::string sha256 = ManifestSha256(*manifest);
      sha256 != manifest_sha256) {
    return failed(folder, "/", kManifestFile, " has the sha256 ", sha256,
                  ", and that of the servers has ",
                  Shortened(manifest_sha256, 64));
  }
  for (const checkpoint::Kept& kept : manifest->kept()) {
    if (kept.rank() != rank) continue;
    absl::StatusOr<WorkerState> state = ReadKept(folder, kept);
    if (!state.ok()) return failed(state.status().message());
    return state;
  }
  return WorkerState{};
}

}  // namespace slackline
