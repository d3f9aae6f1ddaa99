# The libraries behind all-reduce, as targets: slackline_gloo, and slackline_nccl
# where CUDA::cudart is a target. Those that are not found are left out. For our
# own build, and installed for that of others.

# Gloo's CMake package does not name its include folder on every distribution.
find_path(GLOO_INCLUDE_DIR gloo/allreduce.h)
find_library(GLOO_LIBRARY gloo)
if(GLOO_INCLUDE_DIR AND GLOO_LIBRARY AND NOT TARGET slackline_gloo)
  add_library(slackline_gloo INTERFACE IMPORTED)
  target_include_directories(slackline_gloo INTERFACE ${GLOO_INCLUDE_DIR})
  target_link_libraries(slackline_gloo INTERFACE ${GLOO_LIBRARY})
  # LibTorch has a Gloo of another version inside, whose symbols are visible: ours
  # has to be searched first, so it is linked before everything else.
  target_link_options(slackline_gloo INTERFACE
    "LINKER:--push-state,--no-as-needed,${GLOO_LIBRARY},--pop-state")
endif()

# Its runtime package has no libnccl.so, only libnccl.so.2.
if(TARGET CUDA::cudart)
  find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(NCCL_LIBRARY NAMES nccl libnccl.so.2
    HINTS ${CUDAToolkit_LIBRARY_DIR} ${CUDAToolkit_LIBRARY_ROOT} PATH_SUFFIXES lib lib64)
  if(NCCL_INCLUDE_DIR AND NCCL_LIBRARY AND NOT TARGET slackline_nccl)
    add_library(slackline_nccl INTERFACE IMPORTED)
    target_include_directories(slackline_nccl INTERFACE ${NCCL_INCLUDE_DIR})
    target_link_libraries(slackline_nccl INTERFACE ${NCCL_LIBRARY} CUDA::cudart)
  endif()
endif()
