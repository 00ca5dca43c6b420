# split_link(<link> <file> <anchor>): splits a link at its #; either part may be empty.
function(split_link link file anchor)
  string(REGEX MATCH "^([^#]*)(#(.*))?$" parts "${link}")
  set(${file} "${CMAKE_MATCH_1}" PARENT_SCOPE)
  set(${anchor} "${CMAKE_MATCH_3}" PARENT_SCOPE)
endfunction()
