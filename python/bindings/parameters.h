// Parameters in tensors of Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "proto/optimizer.pb.h"
#include "worker/memory/parameter_memory.h"
#include "worker/session/snapshot.h"

namespace slackline::python {

// Imported through DLPack or the buffer protocol, without a copy. Holding one
// holds the tensor.
using FloatArray =
    nanobind::ndarray<float, nanobind::c_contig, nanobind::device::cpu>;
// The same, of the host or of a GPU.
using TensorArray = nanobind::ndarray<float, nanobind::c_contig>;
using ByteArray = nanobind::ndarray<const uint8_t, nanobind::c_contig,
                                    nanobind::device::cpu, nanobind::ndim<1>>;

struct Table {
  std::string name;
  std::vector<int64_t> shape;
  TensorArray values;  // As many as the shape says.
  config::Optimizer optimizer;
};

// Throws a ValueError for text that is no optimizer of a config.
config::Optimizer ParseOptimizer(const std::string& text);

// The name of an optimizer's block, and by name all that its rule goes by, with
// the defaults of what the config leaves out. The optimizer has been checked.
using RuleFields =
    std::pair<std::string, std::map<std::string, std::variant<bool, double>>>;
RuleFields FieldsOf(const config::Optimizer& optimizer);

// One tensor of a file: name, type in the format's words, shape, bytes.
TypedTensor MakeTypedTensor(const std::string& name, const std::string& type,
                            const std::vector<int64_t>& shape,
                            const ByteArray& bytes);

// What a job is told of the tables: it begins with what worker 0 has in them.
// Throws a ValueError that names the first whose shape does not make its
// values.
std::vector<TableSpec> SpecsOf(const std::vector<Table>& tables);

class GpuParameters;

// Holds the tensors. Thread-compatible.
class Parameters {
 public:
  virtual ~Parameters() = default;
  virtual ParameterMemory& memory() = 0;
  virtual void SetCompanions(std::vector<TypedTensor> companions) = 0;
  // Null for those on the host.
  virtual GpuParameters* gpu() { return nullptr; }
  void Load(const Snapshot& snapshot) { LoadSnapshot(snapshot, &memory()); }
};

// Of tensors on the host. Throws a ValueError that names the table.
std::shared_ptr<Parameters> MakeHostParameters(std::vector<Table> tables);

}  // namespace slackline::python
