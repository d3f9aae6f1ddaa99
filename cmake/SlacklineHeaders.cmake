# Every header compiles alone. Where X.cc includes X.h first, the build shows that
# already; the other headers are compiled here, each in a file of its own.

# slackline_check_headers(<target> <folder>...): the folders are below the source
# folder. Headers that are included many times into one namespace (*-inl.h) are
# parts of a file and not headers.
function(slackline_check_headers target)
  set(files)
  foreach(folder ${ARGN})
    file(GLOB_RECURSE headers RELATIVE ${CMAKE_SOURCE_DIR} CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/${folder}/*.h)
    foreach(header ${headers})
      string(REGEX REPLACE "\\.h$" ".cc" source ${header})
      set(first "")
      if(EXISTS ${CMAKE_SOURCE_DIR}/${source})
        file(STRINGS ${CMAKE_SOURCE_DIR}/${source} first REGEX "^#include " LIMIT_COUNT 1)
      endif()
      if(first STREQUAL "#include \"${header}\"" OR header MATCHES "-inl\\.h$")
        continue()
      endif()
      if(NOT SLACKLINE_HAS_CUDA AND header MATCHES "cuda|optim/update_body\\.h|floats/round_body\\.h")
        continue()
      endif()
      string(REPLACE "/" "_" file ${header})
      set(file ${CMAKE_CURRENT_BINARY_DIR}/headers/${file}.cc)
      file(CONFIGURE OUTPUT ${file} CONTENT "#include \"${header}\"  // IWYU pragma: keep\n")
      list(APPEND files ${file})
    endforeach()
  endforeach()
  add_library(${target} OBJECT ${files})
  slackline_options(${target})
endfunction()
