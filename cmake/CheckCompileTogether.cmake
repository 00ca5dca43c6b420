# cmake -D COMPILER=<c++> -D FLAGS=<flags, a list> -D FOLDER=<folder> -D TOGETHER=<file.cpp>
#       [-D HEADER=<precompiled header>] -P CheckCompileTogether.cmake
#
# Checks that all files in FOLDER that are read by CheckCompileFail.cmake compile as they are. Compiled one by one they
# take 1 s each, nearly all of it for the header. TOGETHER includes them all, each in its own namespace, after the
# headers that they include. Files whose mistake is a flag contain only the header and are skipped.
cmake_minimum_required(VERSION 3.22)

file(GLOB sources ${FOLDER}/*.cpp)
set(headers "")
set(spaces "")
foreach(source IN LISTS sources)
  file(STRINGS ${source} mistakes REGEX "^// with(out)?: ")
  if(mistakes)
    continue()
  endif()
  file(STRINGS ${source} included REGEX "^#include ")
  list(TRANSFORM included REPLACE "\"(.*)\"" "\"${FOLDER}/\\1\"")  # by absolute paths
  list(APPEND headers ${included})
  cmake_path(GET source STEM name)
  string(APPEND spaces "namespace ${name} {\n#include \"${source}\"\n}\n")
endforeach()
if(NOT spaces)
  message(FATAL_ERROR "${FOLDER} has no files whose mistake is in their source")
endif()
list(REMOVE_DUPLICATES headers)
list(JOIN headers "\n" headers)
file(WRITE ${TOGETHER} "${headers}\n${spaces}")

set(compile ${COMPILER} -std=c++20 ${FLAGS} -fsyntax-only ${TOGETHER})
if(HEADER)
  list(APPEND compile -include ${HEADER})
endif()
execute_process(COMMAND ${compile} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "Without their mistakes these files must compile, but:\n${output}")
endif()
