// OpenBLAS as it is loaded into this process: PyTorch of Debian and Ubuntu
// computes with it. Without effect where none is loaded.
#pragma once

#include <string>

namespace slackline {

// Tells every OpenBLAS to use so many threads: torch.set_num_threads() and
// at::set_num_threads() do not reach it.
void SetOpenBlasThreads(int threads);

// What has become of the kernels; `sentence` is empty if they are good.
struct OpenBlasKernels {
  bool changed = false;
  std::string sentence;  // For people.
};

// OpenBLAS has kernels for many processors, and chooses when it is loaded, by
// the processor's model. A version that is older than the model takes those
// that run everywhere, without AVX: 0.3.21, of Debian 12, takes 2.5 times as
// long for a matrix product on a Xeon of 2023 as with those of Haswell. If that
// has happened, on a processor with AVX2 and FMA, OpenBLAS is made to choose
// again, by OPENBLAS_CORETYPE=Haswell, which stays in the environment for
// children; if the variable is set already, the choice is the user's.
//
// A product that is under way would read half of either kernels: call it before
// the first step. If another thread of the process runs, and goes on for half a
// second, nothing is changed, and the sentence says how else to do it.
OpenBlasKernels ChooseOpenBlasKernels();

}  // namespace slackline
