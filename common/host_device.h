// SL_HOST_DEVICE: before a function that runs on CPUs and, where nvcc compiles
// it, on GPUs, too.
#pragma once

#ifdef __CUDACC__
#define SL_HOST_DEVICE __host__ __device__
#else
#define SL_HOST_DEVICE
#endif
