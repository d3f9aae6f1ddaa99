// Parameters in tensors of Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "proto/optimizer.pb.h"
#include "worker/session/parameter_memory.h"
#include "worker/session/snapshot.h"

namespace slackline::python {

// Imported through DLPack or the buffer protocol, without a copy. Holding one
// holds the tensor.
using FloatArray =
    nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;
using ByteArray = nanobind::ndarray<const uint8_t, nanobind::c_contig,
                                    nanobind::device::cpu, nanobind::ndim<1>>;

struct Table {
  std::string name;
  std::vector<int64_t> shape;
  FloatArray values;  // As many as the shape says.
  config::Optimizer optimizer;
};

// Throws a ValueError for text that is no optimizer of a config.
config::Optimizer ParseOptimizer(const std::string& text);

// One tensor of a file: name, type in the format's words, shape, bytes.
TypedTensor MakeTypedTensor(const std::string& name, const std::string& type,
                            const std::vector<int64_t>& shape,
                            const ByteArray& bytes);

// Holds the tensors. Thread-compatible.
class Parameters {
 public:
  // The job begins with what worker 0 has in them. Throws a ValueError that
  // names the table.
  explicit Parameters(std::vector<Table> tables);

  HostParameters& memory() { return memory_; }
  void Load(const Snapshot& snapshot) { LoadSnapshot(snapshot, &memory_); }
  void SetCompanions(std::vector<TypedTensor> companions) {
    memory_.SetCompanions(std::move(companions));
  }

 private:
  std::vector<Table> tables_;
  HostParameters memory_;
};

}  // namespace slackline::python
