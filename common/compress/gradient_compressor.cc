#include "common/compress/gradient_compressor.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/block/config_problems.h"
#include "common/block/table_pattern.h"
#include "common/compress/compression_config.h"
#include "common/optim/finite.h"
#include "common/rng.h"
#include "common/status.h"
#include "common/view/shard_map.h"

namespace slackline {
namespace {

// Elements that share a scale, or of which a part is kept.
constexpr int64_t kInt8Block = 256;
constexpr int64_t kSignBlock = 1024;
constexpr int64_t kSparseBlock = 4096;

GradientCode CodeOf(const config::Compression& compression,
                    int64_t shard_elements) {
  const auto in_blocks = [&](wire::Encoding::Kind kind, int64_t block) {
    return GradientCode{
        .kind = kind,
        .block = static_cast<int32_t>(std::gcd(block, shard_elements))};
  };
  const auto sparse = [&](double ratio) {
    GradientCode code = in_blocks(wire::Encoding::SPARSE, kSparseBlock);
    code.kept = std::max(1, static_cast<int32_t>(std::lround(
                                ratio * static_cast<double>(code.block))));
    return code;
  };
  using Compression = config::Compression;
  switch (compression.method_case()) {
    case Compression::kBfloat16:
      return {.kind = wire::Encoding::BFLOAT16};
    case Compression::kFloat16:
      return {.kind = wire::Encoding::FLOAT16};
    case Compression::kInt8:
      return in_blocks(wire::Encoding::INT8, kInt8Block);
    case Compression::kSign:
      return in_blocks(wire::Encoding::SIGN, kSignBlock);
    case Compression::kTopK:
      return sparse(compression.top_k().ratio());
    case Compression::kRandomK:
      return sparse(compression.random_k().ratio());
    default:
      return {};
  }
}

}  // namespace

absl::StatusOr<GradientCompressor> GradientCompressor::Create(
    const config::ClusterConfig& config, absl::Span<const wire::Table> tables,
    Rank rank) {
  const config::Sync& sync = config.sync();
  const ConfigProblems problems;
  std::vector<std::string> names;
  for (const wire::Table& table : tables) names.push_back(table.name());
  for (int i = 0; i < sync.compression_size(); ++i) {
    const ConfigProblems of_entry = problems.In("sync").In("compression", i);
    CheckCompression(sync.compression(i), of_entry);
    CheckTablePattern(sync.compression(i).table(), names, of_entry);
  }
  SL_RETURN_IF_ERROR(problems.ToStatus());
  GradientCompressor compressor(
      Mix64(Mix64(static_cast<uint64_t>(config.train().seed())) ^
            static_cast<uint64_t>(rank)));
  for (const wire::Table& table : tables) {
    Of of{.elements = TableElements(table), .code = {}, .rest = {}};
    if (const config::Compression* const found = CompressionOf(sync, table);
        found != nullptr) {
      of.code = CodeOf(*found, table.shard_elements() > 0
                                   ? table.shard_elements()
                                   : ShardElements(config.limits()));
      of.keep = found->has_random_k() ? Keep::kRandom : Keep::kLargest;
      of.error_feedback = found->error_feedback();
    }
    compressor.tables_.push_back(std::move(of));
  }
  return compressor;
}

CodedGradient GradientCompressor::Compress(TableId table, Clock clock,
                                           const Payload& gradient) {
  Of& of = tables_[static_cast<size_t>(table)];
  const auto elements = static_cast<size_t>(of.elements);
  SL_CHECK(gradient.size() == elements * sizeof(float),
           "a gradient of another size");
  if (of.code.whole()) return gradient;
  const auto all_finite = [&](const std::vector<float>& floats) {
    return optim::AllFinite(reinterpret_cast<const std::byte*>(floats.data()),
                            elements);
  };
  values_.resize(elements);
  decoded_.resize(elements);
  std::memcpy(values_.data(), gradient.data(), gradient.size());
  for (size_t i = 0; i < of.rest.size(); ++i) values_[i] += of.rest[i];
  if (!all_finite(values_)) return gradient;
  Rng rng(Mix64(Mix64(seed_ ^ static_cast<uint64_t>(table)) ^
                static_cast<uint64_t>(clock)));
  Payload bytes = Payload::Allocate(of.code.Bytes(elements));
  Encode(of.code, of.keep, values_, &rng, bytes.MutableData());
  SL_CHECK(Decode(of.code, bytes.data(), absl::MakeSpan(decoded_)),
           "a gradient that was encoded here cannot be decoded");
  if (!all_finite(decoded_)) {  // Too large for a code of 16 bits.
    of.rest.clear();
    return Payload::Copy(values_.data(), elements * sizeof(float));
  }
  if (of.error_feedback) {
    of.rest.resize(elements);
    for (size_t i = 0; i < elements; ++i) of.rest[i] = values_[i] - decoded_[i];
  }
  return {std::move(bytes), of.code};
}

bool GradientCompressor::remembers() const {
  return std::any_of(tables_.begin(), tables_.end(), [](const Of& of) {
    return !of.code.whole() && of.error_feedback;
  });
}

std::vector<GradientCompressor::Residual> GradientCompressor::Residuals()
    const {
  std::vector<Residual> residuals;
  for (size_t t = 0; t < tables_.size(); ++t) {
    const std::vector<float>& rest = tables_[t].rest;
    if (rest.empty()) continue;
    residuals.push_back(
        {.table = TableId{static_cast<int32_t>(t)},
         .floats = Payload::Copy(rest.data(), rest.size() * sizeof(float))});
  }
  return residuals;
}

absl::Status GradientCompressor::GoOnWith(
    absl::Span<const Residual> residuals) {
  for (const Residual& residual : residuals) {
    const auto table = static_cast<size_t>(residual.table);
    if (table >= tables_.size() ||
        residual.floats.size() !=
            static_cast<size_t>(tables_[table].elements) * sizeof(float)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a residual of ", residual.floats.size(),
                       " bytes is not of table ", table));
    }
  }
  for (const Residual& residual : residuals) {
    Of& of = tables_[static_cast<size_t>(residual.table)];
    if (of.code.whole() || !of.error_feedback) continue;
    of.rest.resize(static_cast<size_t>(of.elements));
    std::memcpy(of.rest.data(), residual.floats.data(), residual.floats.size());
  }
  return absl::OkStatus();
}

int64_t GradientCompressor::bytes() const {
  int64_t bytes = 0;
  for (const Of& of : tables_)
    bytes += of.elements * static_cast<int64_t>(sizeof(float));
  return bytes;
}

int64_t GradientCompressor::bytes_pushed() const {
  int64_t bytes = 0;
  for (const Of& of : tables_) {
    bytes +=
        static_cast<int64_t>(of.code.Bytes(static_cast<size_t>(of.elements)));
  }
  return bytes;
}

}  // namespace slackline
