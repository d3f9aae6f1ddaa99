#include "common/view/initializer.h"

#include <algorithm>

#include "common/rng.h"

namespace slackline {

void InitializeElements(const wire::Table& table, uint64_t seed, int64_t begin,
                        absl::Span<float> values) {
  const wire::Initializer& initializer = table.initializer();
  if (initializer.kind() == wire::Initializer::OF_WORKER ||
      initializer.kind() == wire::Initializer::OF_CHECKPOINT) {
    std::fill(values.begin(), values.end(), 0.0f);
    return;
  }
  const Rng base = Rng(seed).Fork(table.name());
  const uint64_t table_seed = Rng(base).Next();
  for (size_t i = 0; i < values.size(); ++i) {
    // A generator per element: two or three multiplications, paid once per job.
    Rng rng(table_seed ^ Mix64(static_cast<uint64_t>(begin) + i));
    switch (initializer.kind()) {
      case wire::Initializer::UNIFORM:
        values[i] = static_cast<float>(initializer.a() +
                                       (initializer.b() - initializer.a()) *
                                           rng.Uniform());
        break;
      case wire::Initializer::NORMAL:
        values[i] = static_cast<float>(initializer.a() +
                                       initializer.b() * rng.Normal());
        break;
      default:
        values[i] = static_cast<float>(initializer.a());
    }
  }
}

namespace {

bool SomeTableBeginsWith(const wire::View& view, wire::Initializer::Kind kind) {
  return std::any_of(view.table().begin(), view.table().end(),
                     [&](const wire::Table& table) {
                       return table.initializer().kind() == kind;
                     });
}

}  // namespace

bool BeginsWithWorker(const wire::View& view) {
  return SomeTableBeginsWith(view, wire::Initializer::OF_WORKER);
}

bool BeginsWithCheckpoint(const wire::View& view) {
  return SomeTableBeginsWith(view, wire::Initializer::OF_CHECKPOINT);
}

}  // namespace slackline
