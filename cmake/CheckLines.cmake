# cmake -D "FILES=<file>;…" -D MOST=<count> -P CheckLines.cmake
#
# Fails if a file has more than MOST lines.
foreach(file IN LISTS FILES)
  file(READ "${file}" text)
  string(REGEX REPLACE "[^\n]" "" ends "${text}")
  string(LENGTH "${ends}" lines)
  message("${file}: ${lines} lines")
  if(lines EQUAL 0 OR lines GREATER MOST)
    message(SEND_ERROR "${file} has ${lines} lines, at most ${MOST} are allowed")
  endif()
endforeach()
