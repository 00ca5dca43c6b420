# cmake -D PROGRAM=<benchmark> -D FILES=<path without suffix> -P CheckBench.cmake -- <argument>...
#
# Runs a benchmark. Fails unless it succeeds and writes two files: FILES.svg, a picture for light and dark screens
# without NaN or infinity, and FILES.json, in Google Benchmark's format with all entries that its tools/compare.py
# reads.
cmake_minimum_required(VERSION 3.22)

include(${CMAKE_CURRENT_LIST_DIR}/Arguments.cmake)
quoted_arguments(arguments)

file(REMOVE ${FILES}.svg ${FILES}.json)
cmake_language(EVAL CODE
               "execute_process(COMMAND [==[${PROGRAM}]==] ${arguments} --svg [==[${FILES}.svg]==] RESULT_VARIABLE code)")
if(NOT code EQUAL 0)
  message(FATAL_ERROR "${PROGRAM}: exit code ${code}")
endif()

foreach(file IN ITEMS ${FILES}.svg ${FILES}.json)
  if(NOT EXISTS ${file})
    message(FATAL_ERROR "${PROGRAM} has not written ${file}")
  endif()
endforeach()

file(READ ${FILES}.svg svg)
foreach(want IN ITEMS "^<svg xmlns=" "<title>[^<]+</title>" "prefers-color-scheme:dark" "<text " "</svg>\n$")
  if(NOT svg MATCHES "${want}")
    message(FATAL_ERROR "${FILES}.svg has nothing that matches ${want}")
  endif()
endforeach()
if(svg MATCHES "(nan|inf)[\" ,%]")
  message(FATAL_ERROR "${FILES}.svg has an invalid number: ${CMAKE_MATCH_0}")
endif()

file(READ ${FILES}.json json)
foreach(key IN ITEMS date num_cpus library_build_type attn instruction_set)
  string(JSON value GET "${json}" context ${key})  # an error if it is missing
endforeach()
string(JSON count LENGTH "${json}" benchmarks)
if(count LESS 1)
  message(FATAL_ERROR "${FILES}.json has no benchmarks")
endif()
math(EXPR last "${count} - 1")
set(names "")
foreach(i RANGE ${last})
  string(JSON entry GET "${json}" benchmarks ${i})
  foreach(key IN ITEMS name run_name run_type iterations real_time cpu_time time_unit)
    string(JSON ${key} GET "${entry}" ${key})
  endforeach()
  if(NOT run_type STREQUAL "iteration" OR NOT time_unit STREQUAL "ns" OR iterations LESS 1 OR NOT real_time GREATER 0
     OR cpu_time LESS 0)
    message(FATAL_ERROR "${FILES}.json: ${entry}")
  endif()
  if(name IN_LIST names)
    message(FATAL_ERROR "${FILES}.json has ${name} twice")
  endif()
  list(APPEND names "${name}")
endforeach()
message("${count} entries in ${FILES}.json")
