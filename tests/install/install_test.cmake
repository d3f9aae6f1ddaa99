# Goal: a project of somebody else builds and runs with what `cmake --install`
# leaves, and with nothing of the build.
# Method: installs to a new prefix, moves the prefix, and builds a consumer there.

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${ARGN}\nended with ${result}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

file(REMOVE_RECURSE ${WORK})
run(${CMAKE_COMMAND} --install ${BUILD} --prefix ${WORK}/first)
# Nothing may depend on where it was installed to.
file(RENAME ${WORK}/first ${WORK}/prefix)

foreach(program slackline slackline_server slackline_worker slackline_replay)
  run(${WORK}/prefix/bin/${program} --version)
  if(NOT output MATCHES "^${program} ${VERSION} ")
    message(FATAL_ERROR "${program} --version says '${output}'")
  endif()
endforeach()

foreach(file man/man1/slackline.1 bash-completion/completions/slackline
    zsh/site-functions/_slackline fish/vendor_completions.d/slackline.fish)
  file(READ ${WORK}/prefix/share/${file} text)
  if(NOT text MATCHES "drain")
    message(FATAL_ERROR "${file} does not tell of all commands:\n${text}")
  endif()
endforeach()

run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/consumer -DCMAKE_PREFIX_PATH=${WORK}/prefix
  -DCMAKE_CXX_COMPILER=${CXX} -DCMAKE_BUILD_TYPE=Debug)
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${WORK}/consumer/consumer ${WORK}/prefix/share/slackline/examples/mnist_mlp.textproto)
if(NOT output MATCHES "slackline ${VERSION}: .* has 4 workers")
  message(FATAL_ERROR "the consumer says '${output}'")
endif()
run(${WORK}/consumer/consumer --help)
if(NOT output MATCHES "SLACKLINE_CLUSTER")
  message(FATAL_ERROR "the consumer's --help says '${output}'")
endif()
