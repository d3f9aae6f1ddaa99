# NCCL, through which workers on GPUs all-reduce, as the target slackline_nccl:
# where CUDA::cudart is a target and NCCL is found. For our own build, and installed
# for that of others.

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
