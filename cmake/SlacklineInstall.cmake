# What `cmake --install` puts below the prefix: the programs, the schemas, and the
# client library slackline::client with everything that it links and the headers
# of these, for find_package(slackline). Included after all of these targets: it
# asks them what they link.

include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# What a program needs that joins a job as a worker: the session, and the program
# around it.
add_library(slackline_client INTERFACE)
target_link_libraries(slackline_client INTERFACE 
  slackline_worker_program slackline_version)

# Sets `result` to our targets among `roots` and all that they link.
function(slackline_closure result)
  set(queue ${ARGN})
  set(found)
  while(queue)
    list(POP_FRONT queue target)
    string(REGEX REPLACE "^\\$<LINK_ONLY:(.*)>$" "\\1" target "${target}")
    if(target IN_LIST found OR NOT target MATCHES "^slackline_" OR NOT TARGET ${target})
      continue()
    endif()
    get_target_property(imported ${target} IMPORTED)
    if(imported)
      continue()  # Of SlacklineNccl.cmake.
    endif()
    list(APPEND found ${target})
    foreach(property LINK_LIBRARIES INTERFACE_LINK_LIBRARIES)
      get_target_property(libraries ${target} ${property})
      if(libraries)
        list(APPEND queue ${libraries})
      endif()
    endforeach()
  endwhile()
  set(${result} ${found} PARENT_SCOPE)
endfunction()

slackline_closure(client_targets slackline_client)
foreach(target ${client_targets})
  string(REPLACE "slackline_" "" name ${target})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name})
  get_target_property(target_folder ${target} SOURCE_DIR)
  file(RELATIVE_PATH target_folder ${CMAKE_SOURCE_DIR} ${target_folder})
  # A library of several folders has headers in each.
  set(folders ${target_folder})
  get_target_property(sources ${target} SLACKLINE_SOURCES)
  foreach(source ${sources})
    get_filename_component(folder "${source}" DIRECTORY)
    if(folder AND NOT IS_ABSOLUTE "${folder}")
      cmake_path(SET folder NORMALIZE ${target_folder}/${folder})
      list(APPEND folders ${folder})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder ${folders})
    file(GLOB headers ${CMAKE_SOURCE_DIR}/${folder}/*.h)
    install(FILES ${headers} DESTINATION ${SLACKLINE_INSTALL_HEADERS}/${folder} COMPONENT client)
  endforeach()
endforeach()
install(DIRECTORY ${CMAKE_BINARY_DIR}/generated/proto/ DESTINATION ${SLACKLINE_INSTALL_HEADERS}/proto
  COMPONENT client FILES_MATCHING PATTERN "*.pb.h")
install(DIRECTORY ${CMAKE_SOURCE_DIR}/proto/ DESTINATION ${CMAKE_INSTALL_DATADIR}/slackline/proto
  COMPONENT client FILES_MATCHING PATTERN "*.proto")
install(TARGETS ${client_targets} EXPORT slackline-targets
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT client)
install(EXPORT slackline-targets NAMESPACE slackline:: COMPONENT client
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/slackline)
configure_package_config_file(${CMAKE_SOURCE_DIR}/cmake/slackline-config.cmake.in
  ${CMAKE_BINARY_DIR}/slackline-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/slackline)
# Before 1.0 a minor version may change the API.
write_basic_package_version_file(${CMAKE_BINARY_DIR}/slackline-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/slackline-config.cmake ${CMAKE_BINARY_DIR}/slackline-config-version.cmake
  ${CMAKE_SOURCE_DIR}/cmake/SlacklineNccl.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/slackline COMPONENT client)

# The scripts of `slackline report` and `slackline track`, into the folder of the program.
# slackline_install_report(<folder> <component> [EXCLUDE_FROM_ALL])
function(slackline_install_report folder component)
  install(PROGRAMS ${CMAKE_SOURCE_DIR}/tools/report/slackline_report.py
    ${CMAKE_SOURCE_DIR}/tools/report/slackline_track.py
    DESTINATION ${folder} COMPONENT ${component} ${ARGN})
  install(DIRECTORY ${CMAKE_SOURCE_DIR}/tools/report/slackline_report_lib
    DESTINATION ${folder} COMPONENT ${component} ${ARGN} FILES_MATCHING PATTERN "*.py")
endfunction()

# The programs find each other in their own folder. Others than these are for
# development.
set(programs slackline slackline_server)
if(SLACKLINE_LIBTORCH)
  list(APPEND programs slackline_worker slackline_replay)
endif()
# All that `cmake --install` takes, without tests and benchmarks.
add_custom_target(slackline_product)
add_dependencies(slackline_product ${programs} ${client_targets} slackline_python slackline_report)
install(TARGETS ${programs} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
slackline_install_report(${CMAKE_INSTALL_BINDIR} programs)
# What Prometheus and Grafana are given.
install(FILES ${CMAKE_SOURCE_DIR}/tools/watch/alerts.yml ${CMAKE_SOURCE_DIR}/tools/watch/board.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/slackline/watch COMPONENT programs)
install(FILES ${CMAKE_SOURCE_DIR}/LICENSE ${CMAKE_SOURCE_DIR}/README.md
  DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT programs)
install(DIRECTORY ${CMAKE_SOURCE_DIR}/examples DESTINATION ${CMAKE_INSTALL_DATADIR}/slackline COMPONENT programs)

# What the program says of itself: its page for man, and completions for shells.
set(datadir ${CMAKE_INSTALL_DATADIR})
set(slackline_said
  "manual" man/man1/slackline.1
  "completion bash" bash-completion/completions/slackline
  "completion zsh" zsh/site-functions/_slackline
  "completion fish" fish/vendor_completions.d/slackline.fish)
while(slackline_said)
  list(POP_FRONT slackline_said words file)
  install(CODE "
    set(file \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${datadir}/${file}\")
    get_filename_component(folder \"\${file}\" DIRECTORY)
    file(MAKE_DIRECTORY \"\${folder}\")
    separate_arguments(words UNIX_COMMAND \"${words}\")
    execute_process(COMMAND \"$<TARGET_FILE:slackline>\" \${words} OUTPUT_FILE \"\${file}\" COMMAND_ERROR_IS_FATAL ANY)
    message(STATUS \"Installing: \${file}\")" COMPONENT programs)
endwhile()
