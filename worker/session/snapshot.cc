#include "worker/session/snapshot.h"

#include <utility>

#include "common/status.h"
#include "common/view/shard_map.h"

namespace slackline {
namespace {

template <typename ValuesOf>
Snapshot Sliced(const View& view, const ValuesOf& values_of) {
  Snapshot snapshot(static_cast<size_t>(view.proto().table_size()));
  for (size_t table = 0; table < snapshot.size(); ++table) {
    for (const ShardRange& range :
         view.ShardsOf(TableId{static_cast<int32_t>(table)}))
      snapshot[table].push_back(values_of(static_cast<size_t>(range.shard)));
  }
  return snapshot;
}

}  // namespace

Snapshot SnapshotOf(const PullResult& pulled) {
  return Sliced(*pulled.view,
                [&](size_t shard) { return pulled.shards[shard].values; });
}

Snapshot SnapshotOf(const View& view, absl::Span<const Payload> values) {
  return Sliced(view, [&](size_t shard) { return values[shard]; });
}

void LoadSnapshot(const Snapshot& snapshot, ParameterMemory* parameters) {
  SL_CHECK(snapshot.size() == parameters->tables().size(),
           "snapshot of another model");
  for (size_t table = 0; table < snapshot.size(); ++table) {
    int64_t element = 0;
    for (const Payload& piece : snapshot[table]) {
      parameters->Load(static_cast<int>(table), element, piece);
      element += static_cast<int64_t>(piece.size() / sizeof(float));
    }
    SL_CHECK(element == TableElements(parameters->tables()[table]),
             "snapshot is too small");
  }
}

Snapshot TakeSnapshot(ParameterMemory& parameters) {
  Snapshot snapshot;
  for (size_t table = 0; table < parameters.tables().size(); ++table) {
    const int64_t elements = TableElements(parameters.tables()[table]);
    Payload values =
        Payload::Allocate(static_cast<size_t>(elements) * sizeof(float));
    const absl::Status read = parameters.Read(
        static_cast<int>(table),
        absl::MakeSpan(reinterpret_cast<float*>(values.MutableData()),
                       static_cast<size_t>(elements)));
    SL_CHECK(read.ok(), read.ToString());
    snapshot.push_back({std::move(values)});
  }
  return snapshot;
}

}  // namespace slackline
