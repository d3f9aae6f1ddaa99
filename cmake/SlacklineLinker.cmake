# The fastest linker that is there: mold and lld link a program in a fifth of the time
# of GNU ld, gold in a third. g++ knows mold from version 12 on. With AddressSanitizer
# gold warns of what it cannot export.
include(CheckLinkerFlag)
foreach(linker mold lld gold)
  if(linker STREQUAL "gold" AND SLACKLINE_SANITIZER MATCHES "address")
    continue()
  endif()
  check_linker_flag(CXX -fuse-ld=${linker} SLACKLINE_LINKS_WITH_${linker})
  if(SLACKLINE_LINKS_WITH_${linker})
    add_link_options($<$<LINK_LANGUAGE:CXX>:-fuse-ld=${linker}>)
    break()
  endif()
endforeach()
