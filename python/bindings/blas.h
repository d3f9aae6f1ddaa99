// Threads of the linear algebra libraries in this process.
#pragma once

namespace slackline::python {

// Tells every OpenBLAS that is loaded to use so many threads. PyTorch of Debian
// computes with it, and torch.set_num_threads() does not reach it.
void SetOpenBlasThreads(int threads);

}  // namespace slackline::python
