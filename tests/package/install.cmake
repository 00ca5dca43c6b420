# Installs to one folder and moves the tree to another: no file may refer to the first.
include(${CMAKE_CURRENT_LIST_DIR}/steps.cmake)
set(first ${WORK_DIR}/staging/prefix)
file(REMOVE_RECURSE ${WORK_DIR}/staging ${WORK_DIR}/moved)
run(${CMAKE_COMMAND} --install ${BINARY_DIR} --prefix ${first})

file(GLOB_RECURSE files ${first}/*)
foreach(file IN LISTS files)
  file(READ ${file} text)
  foreach(folder ${SOURCE_DIR} ${BINARY_DIR} ${first})
    # A whole path: "include/attn/mod.h" does not name a clone in the folder attn of the root.
    string(REGEX REPLACE "([][+.*()^$?|\\])" "\\\\\\1" pattern "${folder}")
    if(text MATCHES "(^|[^A-Za-z0-9_.}-])${pattern}([^A-Za-z0-9_.-]|$)")
      message(FATAL_ERROR "${file} names ${folder}")
    endif()
  endforeach()
endforeach()

file(MAKE_DIRECTORY ${WORK_DIR}/moved)
file(RENAME ${first} ${prefix})
