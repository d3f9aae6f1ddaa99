# CUDA, optional: without it Slackline trains on the CPU. Sets SLACKLINE_HAS_CUDA;
# where it is true, CUDA is a language of the build and CUDA::cudart a target.

set(SLACKLINE_CUDA AUTO CACHE STRING
  "Build GPU code: ON, OFF, or AUTO for where the CUDA Toolkit works")
set_property(CACHE SLACKLINE_CUDA PROPERTY STRINGS AUTO ON OFF)
if(NOT SLACKLINE_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "SLACKLINE_CUDA is '${SLACKLINE_CUDA}', it must be AUTO, ON or OFF")
endif()

set(SLACKLINE_HAS_CUDA FALSE)
if(SLACKLINE_CUDA STREQUAL "OFF")
  message(STATUS "CUDA: off (SLACKLINE_CUDA=OFF); workers train on the CPU")
  return()
endif()

find_package(CUDAToolkit QUIET)
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
  if(SLACKLINE_CUDA STREQUAL "ON")
    message(FATAL_ERROR
      "SLACKLINE_CUDA is ON, but no CUDA Toolkit with nvcc was found. Install one\n"
      "(https://developer.nvidia.com/cuda-downloads), name an installed one with\n"
      "    -DCUDAToolkit_ROOT=/usr/local/cuda\n"
      "or build for the CPU alone with\n"
      "    -DSLACKLINE_CUDA=OFF")
  endif()
  message(STATUS "CUDA Toolkit: not found, which is fine; workers train on the CPU")
  return()
endif()

# nvcc beside the toolkit, also where it is not on the PATH, and the compiler of
# everything else as its host compiler. CMake reads both when it enables CUDA.
if(NOT DEFINED ENV{CUDACXX})
  set(ENV{CUDACXX} ${CUDAToolkit_NVCC_EXECUTABLE})
endif()
if(CMAKE_CUDA_HOST_COMPILER)
  set(ENV{CUDAHOSTCXX} ${CMAKE_CUDA_HOST_COMPILER})
elseif(NOT DEFINED ENV{CUDAHOSTCXX})
  set(ENV{CUDAHOSTCXX} ${CMAKE_CXX_COMPILER})
endif()

# Machine code for the common generations (others of the same major number run
# it, too), and PTX of the last one for GPUs still to come.
if(CUDAToolkit_VERSION VERSION_LESS 11.8)
  set(cuda_architectures "75-real;80")
else()
  set(cuda_architectures "75-real;80-real;90")
endif()
set(CMAKE_CUDA_ARCHITECTURES "${cuda_architectures}" CACHE STRING "GPU generations to build for")

# One CUDA runtime in a process: LibTorch brings the shared one.
set(CMAKE_CUDA_RUNTIME_LIBRARY Shared)

if(SLACKLINE_CUDA STREQUAL "AUTO")
  # Tries it in a project of its own: a host compiler that nvcc refuses, for
  # example, shall not end the configuration.
  include(CheckLanguage)
  check_language(CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    unset(CMAKE_CUDA_COMPILER CACHE)  # The next configuration tries again.
    message(STATUS "CUDA Toolkit ${CUDAToolkit_VERSION}: found, but ${CUDAToolkit_NVCC_EXECUTABLE} does not work with "
      "$ENV{CUDAHOSTCXX}; workers train on the CPU (-DSLACKLINE_CUDA=ON shows why, "
      "-DCMAKE_CUDA_HOST_COMPILER=... names an older compiler)")
    return()
  endif()
endif()
enable_language(CUDA)
set(SLACKLINE_HAS_CUDA TRUE)
set(CMAKE_CUDA_STANDARD 17)  # All that CUDA 11 knows.
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
message(STATUS "CUDA Toolkit ${CUDAToolkit_VERSION}: GPU code is built, for ${CMAKE_CUDA_ARCHITECTURES}")
