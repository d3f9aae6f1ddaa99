#include "worker/model/compute.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <dlfcn.h>

#include <cstdlib>
#include <exception>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/blas/open_blas.h"

namespace slackline {
namespace {

// The file that holds the function which LibTorch's calls of `symbol` reach,
// symbolic links resolved; empty if no loaded library has it.
std::string FileOfSymbol(const char* symbol) {
  void* const address = dlsym(RTLD_DEFAULT, symbol);
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0 ||
      info.dli_fname == nullptr)
    return "";
  char* const resolved = realpath(info.dli_fname, nullptr);
  if (resolved == nullptr) return info.dli_fname;
  std::string file(resolved);
  std::free(resolved);
  return file;
}

}  // namespace

absl::Status SetComputeThreads(int threads) {
  if (threads < 1 || threads > 1024) {
    return absl::InvalidArgumentError(absl::StrCat(
        "compute threads: ", threads,
        " is outside [1, 1024]; set `threads` of the worker group to the "
        "number of cores for each worker"));
  }
  at::set_num_threads(threads);
  try {
    if (at::get_num_interop_threads() != 1) at::set_num_interop_threads(1);
  } catch (const std::exception&) {
    // The pool has started, with another size. The models never give it work.
  }
  SetOpenBlasThreads(threads);
  return absl::OkStatus();
}

BlasLibrary LoadedBlas() {
  if (at::hasMKL()) return {.fast = true, .name = "MKL"};
  const std::string file = FileOfSymbol("sgemm_");
  // A PyTorch wheel brings its BLAS along under a name of its own, or inside.
  if (file.empty()) return {.fast = true, .name = "the BLAS inside LibTorch"};
  for (const auto& [part, name] :
       {std::pair{"openblas", "OpenBLAS"}, std::pair{"mkl", "MKL"},
        std::pair{"blis", "BLIS"}, std::pair{"atlas", "ATLAS"}}) {
    if (absl::StrContains(file, part)) {
      return {.fast = true, .name = absl::StrCat(name, " (", file, ")")};
    }
  }
  return {.fast = false, .name = absl::StrCat("reference BLAS (", file, ")")};
}

}  // namespace slackline
