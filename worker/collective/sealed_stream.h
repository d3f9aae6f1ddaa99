// A stream that only the ranks of a job can read, or write.
#pragma once

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "worker/collective/records.h"
#include "worker/collective/stream.h"

namespace slackline {

// Sends records (see records.h). What comes and is not the next record of the
// other's stream is kForged. The end of the stream is not proven: whoever needs
// to know that nothing is missing has the other say so.
class SealedStream final : public Stream {
 public:
  // `sealer` and `opener` have proven the keys. Both ends have the same bound
  // for the text of a record, which both directions allocate.
  SealedStream(Descriptor socket, RecordSealer sealer, RecordOpener opener,
               size_t text_bytes_max);

  Outcome Send(absl::Span<const std::byte> data) override;
  bool has_unsent() const override { return sent_ < sealed_; }
  Outcome Receive(absl::Span<std::byte> place) override;

 private:
  RecordSealer sealer_;
  const size_t text_bytes_max_;
  // One record: its bytes [sent_, sealed_) are still to be sent.
  std::vector<std::byte> record_;
  size_t sent_ = 0;
  size_t sealed_ = 0;

  RecordReader reader_;
};

}  // namespace slackline
