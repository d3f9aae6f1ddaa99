# LibTorch: Debian's package, a PyTorch found through CMAKE_PREFIX_PATH, or the
# one that python3 imports. Wants Protobuf and CUDA to be found before. Without it
# there are no models of Slackline's own: slackline, slackline_server and the Python
# package are built, slackline_worker, slackline_replay and what needs them are not.

option(SLACKLINE_LIBTORCH "Build what trains models with LibTorch, slackline_worker above all" ON)
if(NOT SLACKLINE_LIBTORCH)
  message(STATUS "LibTorch: off (SLACKLINE_LIBTORCH=OFF); slackline_worker and slackline_replay are not built")
  return()
endif()

# One with CUDA adds flags to all CUDA code and takes away its architectures:
# ours hold. The list keeps it from asking the GPUs of this host.
set(cuda_flags "${CMAKE_CUDA_FLAGS}")
set(cuda_architectures "${CMAKE_CUDA_ARCHITECTURES}")
if(NOT DEFINED TORCH_CUDA_ARCH_LIST)
  set(TORCH_CUDA_ARCH_LIST "8.0")
endif()
find_package(Torch QUIET)
if(NOT Torch_FOUND)
  execute_process(
    COMMAND python3 -c "import torch; print(torch.utils.cmake_prefix_path)"
    OUTPUT_VARIABLE python_torch OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(python_torch)
    find_package(Torch QUIET HINTS ${python_torch})
  endif()
endif()
if(NOT Torch_FOUND)
  slackline_missing(LibTorch libtorch-dev
    "or build without slackline_worker, for workers in Python alone, with\n"
    "    -DSLACKLINE_LIBTORCH=OFF")
endif()
if(SLACKLINE_HAS_CUDA)
  set(CMAKE_CUDA_FLAGS "${cuda_flags}")
  set(CMAKE_CUDA_ARCHITECTURES "${cuda_architectures}")
endif()
if(TORCH_CXX_FLAGS MATCHES "_GLIBCXX_USE_CXX11_ABI=0")
  message(FATAL_ERROR
    "The LibTorch in ${TORCH_INSTALL_PREFIX} has the old C++ ABI, which no other library\n"
    "here has. Use PyTorch 2.6 or newer, for example with\n"
    "    tools/build_with_pytorch.sh")
endif()

# A PyTorch wheel brings headers of another Protobuf, for its own use, in the
# folder of its headers. Those that our protoc belongs to have to come first.
list(GET Protobuf_INCLUDE_DIRS 0 protobuf_headers)
if(EXISTS "${TORCH_INSTALL_PREFIX}/include/google/protobuf" AND NOT "${TORCH_INSTALL_PREFIX}/include" STREQUAL protobuf_headers)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/headers_first)
  file(CREATE_LINK ${protobuf_headers}/google ${CMAKE_BINARY_DIR}/headers_first/google SYMBOLIC)
  include_directories(BEFORE SYSTEM ${CMAKE_BINARY_DIR}/headers_first)
endif()
