# cmake -D SOURCE_DIR=<the project> -D WORK_DIR=<folder> -D PICTURES=<folder> -D OUTPUT=<folder> -D VERSION=<x.y.z> -P Build.cmake
#
# Builds the site in OUTPUT: the project's Markdown files with pandoc, the reference with Doxygen. PICTURES has the
# output of programs: <mask>.svg and their index.txt, <chart>.svg, <example>.txt, and pages of training runs. The site is
# built in WORK_DIR and moved to OUTPUT only if nothing has failed. With -D ONLY_REFERENCE=ON, which needs neither PICTURES
# nor OUTPUT, it stops after the reference, whose build checks the docstrings.
cmake_minimum_required(VERSION 3.22)

# A page: the Markdown file, its name on the site, and its name in the navigation, or `=` and the page of the navigation
# that it belongs to. examples.md is generated below. Links to Markdown files without a line here fail.
set(pages
    "README.md|index|Tour"
    "examples/README.md|guide|Guide"
    "examples/layers.md|layers|=guide"
    "examples/decoder.md|decoder|=guide"
    "examples/kinds.md|kinds|=guide"
    "examples/graphs.md|graphs|=guide"
    "examples/onnx.md|onnx|=guide"
    "examples/building.md|building|=guide"
    "examples/train_gpt/README.md|train_gpt|=guide"
    "examples/train_hybrid/README.md|train_hybrid|=guide"
    "examples/train_translation/README.md|train_translation|=guide"
    "examples/long_context/README.md|long_context|=guide"
    "examples/nn/README.md|nn|=guide"
    "examples.md|examples|Examples"
    "include/attn/mods/README.md|mods|Mods"
    "include/attn/positions.md|positions|Positions"
    "include/attn/contract.md|contract|=guide"
    "include/attn/errors.md|errors|Errors"
    "include/attn/mpi.md|ranks|Distributed"
    "bench/README.md|measurements|Measurements"
    "bench/recurrences.md|recurrences|=measurements"
    "bench/ranks.md|scaling|=measurements"
    "include/attn/signatures.md|signatures|Signatures"
    "|reference/index|Reference"
    "include/attn/README.md|architecture|Architecture"
    "include/attn/core/README.md|core|=architecture"
    "include/attn/cache/README.md|cache_package|=architecture"
    "include/attn/recurrent/README.md|recurrent_package|=architecture"
    "include/attn/layers/README.md|layers_package|=architecture"
    "include/attn/jvp/README.md|jvp_package|=architecture"
    "include/attn/mpi/README.md|mpi_package|=architecture"
    ".github/CONTRIBUTING.md|contributing|Contributing"
    ".github/CHANGELOG.md|changes|Changes")

# The page of examples/web, if it has been built.
set(demo ${SOURCE_DIR}/build/web/index.html)
if(EXISTS ${demo})
  list(APPEND pages "|demo|Demo")
endif()

set(SITE_SOURCE ${CMAKE_CURRENT_LIST_DIR})
set(made ${WORK_DIR}/made)
file(REMOVE_RECURSE ${made} ${WORK_DIR}/reference)
file(MAKE_DIRECTORY ${made})

foreach(tool IN ITEMS pandoc doxygen)
  find_program(${tool} ${tool})
  if(NOT ${tool})
    message(FATAL_ERROR "the site needs ${tool}: apt-get install ${tool}")
  endif()
endforeach()

# The navigation above each page; `up` leads to the folder of the pages.
function(navigation current up result)
  set(html "<nav class=\"pages\" aria-label=\"Pages\">\n<a class=\"name\" href=\"${up}index.html\">attn</a>\n")
  if("${pages}" MATCHES "\\|${current}\\|=([a-z]+)")
    set(current ${CMAKE_MATCH_1})
  endif()
  set(shown ${pages})
  list(FILTER shown EXCLUDE REGEX "\\|=")
  foreach(page IN LISTS shown)
    string(REGEX MATCH "^([^|]*)\\|([^|]*)\\|(.*)$" page "${page}")
    set(mark "")
    if(CMAKE_MATCH_2 STREQUAL current)
      set(mark " aria-current=\"page\"")
    endif()
    string(APPEND html "<a href=\"${up}${CMAKE_MATCH_2}.html\"${mark}>${CMAKE_MATCH_3}</a>\n")
  endforeach()
  set(${result} "${html}</nav>" PARENT_SCOPE)
endfunction()

# The reference. Its topics come from topics.txt, which must list each header.
file(STRINGS ${SITE_SOURCE}/topics.txt lines REGEX "^[^#]")
file(GLOB headers RELATIVE ${SOURCE_DIR}/include/attn ${SOURCE_DIR}/include/attn/*.h)
set(HEADERS "")  # in the order of topics, so that each begins with its most important header
set(dox "/** @mainpage Reference\n\nEvery public name, by topic:\n\n")
set(groups "")
foreach(line IN LISTS lines)
  if(line MATCHES "^([a-z]+): (.*)$")
    set(topic ${CMAKE_MATCH_1})
    set(title "${CMAKE_MATCH_2}")
  elseif(line MATCHES "\\.h( |$)")
    string(REPLACE " " ";" named "${line}")
    list(REMOVE_ITEM headers ${named})
    foreach(header IN LISTS named)
      file(GLOB found ${SOURCE_DIR}/include/attn/${header})
      list(JOIN found " " found)
      string(APPEND HEADERS " ${found}")
    endforeach()
  else()
    string(STRIP "${line}" line)
    string(APPEND dox "- @ref ${topic} \"${title}\": ${line}\n")
    string(APPEND groups "/** @defgroup ${topic} ${title}\n${line} */\n")
  endif()
endforeach()
if(headers)
  message(FATAL_ERROR "cmake/site/topics.txt has no topic for: ${headers}")
endif()
file(WRITE ${WORK_DIR}/topics.dox
     "${dox}\nThe tour, the guide and the other pages explain how the parts fit together.\n*/\n${groups}"
     "/** @namespace attn\nThe whole library. attn::detail is internal and may change at any time.\n*/\n")
navigation(reference/index "$relpath^../" NAVIGATION)
configure_file(${SITE_SOURCE}/reference_header.html ${WORK_DIR}/reference_header.html @ONLY)
configure_file(${SITE_SOURCE}/Doxyfile.in ${WORK_DIR}/Doxyfile @ONLY)
execute_process(COMMAND ${doxygen} ${WORK_DIR}/Doxyfile WORKING_DIRECTORY ${WORK_DIR} RESULT_VARIABLE code
                OUTPUT_QUIET ERROR_VARIABLE log)
if(NOT code STREQUAL 0 OR log)
  message(FATAL_ERROR "public names without a docstring, or docstrings with mistakes:\n${log}")
endif()
if(ONLY_REFERENCE)
  return()
endif()
# Alphabetical lists of members, which the search makes redundant; no page links to them.
file(GLOB lists ${WORK_DIR}/reference/functions*.html ${WORK_DIR}/reference/globals*.html
     ${WORK_DIR}/reference/namespacemembers*.html)
file(REMOVE ${lists})
file(RENAME ${WORK_DIR}/reference ${made}/reference)
file(COPY_FILE ${SITE_SOURCE}/search.css ${made}/reference/search/search.css)

# The page of examples: the source of each program and its output.
include(${SITE_SOURCE}/Examples.cmake)
examples_page(${WORK_DIR}/examples.md)

# Settings of the Lua filter.
set(lua "return {\n  source = [==[${SOURCE_DIR}]==],\n  pictures = [==[${PICTURES}]==],\n")
string(APPEND lua "  tags = [==[${WORK_DIR}/reference.tag]==],\n  pages = {\n")
foreach(page IN LISTS pages)
  string(REGEX MATCH "^([^|]*)\\|([^|]*)\\|" head "${page}")
  if(CMAKE_MATCH_1)
    string(APPEND lua "    [\"${CMAKE_MATCH_1}\"] = \"${CMAKE_MATCH_2}.html\",\n")
  endif()
endforeach()
file(WRITE ${WORK_DIR}/site.lua "${lua}  },\n}\n")

foreach(page IN LISTS pages)
  string(REGEX MATCH "^([^|]*)\\|([^|]*)\\|" head "${page}")
  set(file "${CMAKE_MATCH_1}")
  set(name "${CMAKE_MATCH_2}")
  if(NOT file)
    continue()
  endif()
  set(markdown ${SOURCE_DIR}/${file})
  if(NOT EXISTS ${markdown})
    set(markdown ${WORK_DIR}/${file})
  endif()
  navigation(${name} "" above)
  execute_process(
    COMMAND ${pandoc} --from gfm --to html5 --wrap=preserve --template ${SITE_SOURCE}/page.html
            --lua-filter ${SITE_SOURCE}/page.lua -M page=${file} -M site=${WORK_DIR}/site.lua -V version=${VERSION} -V
            "navigation=${above}" -o ${made}/${name}.html ${markdown}
    RESULT_VARIABLE code OUTPUT_VARIABLE log ERROR_VARIABLE log)
  if(NOT code STREQUAL 0 OR log)
    message(FATAL_ERROR "${file}:\n${log}")
  endif()
endforeach()

file(GLOB pictures ${PICTURES}/*.svg)
file(COPY ${pictures} DESTINATION ${made}/pictures)
file(GLOB runs ${PICTURES}/*.html)
if(runs)
  file(COPY ${runs} DESTINATION ${made}/runs)
endif()
file(COPY ${SITE_SOURCE}/style.css DESTINATION ${made})
if(EXISTS ${demo})
  file(COPY_FILE ${demo} ${made}/demo.html)
endif()

cmake_path(GET OUTPUT PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
file(REMOVE_RECURSE ${OUTPUT})
file(RENAME ${made} ${OUTPUT})
message(STATUS "the site is in ${OUTPUT}/index.html")
