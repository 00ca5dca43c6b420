# cmake -D SOURCE_DIR=<the project> -D WORK_DIR=<folder> -D PICTURES=<folder> -D OUTPUT=<folder> -D VERSION=<x.y.z> -P Build.cmake
#
# Builds the site in OUTPUT: the project's Markdown files with pandoc, the reference with Doxygen. PICTURES has the
# output of programs: <mask>.svg and their index.txt, <chart>.svg, <example>.txt, and pages of training runs. The site is
# built in WORK_DIR and moved to OUTPUT only if nothing has failed. With -D ONLY_REFERENCE=ON, which needs neither PICTURES
# nor OUTPUT, it stops after the reference, whose build checks the docstrings.
cmake_minimum_required(VERSION 3.22)

# A heading of the menu, or a page: the Markdown file, its name on the site, and its name in the menu. Pages with a *
# are also in the bar, which marks the last of them at or before the current page. examples.md is generated below. Links
# to Markdown files without a line here fail.
set(pages
    "#Start"
    "README.md|index|*Tour"
    ".github/CHANGELOG.md|changes|Changes"
    "examples/building.md|building|*Building"
    "#Guide"
    "examples/README.md|guide|*Guide"
    "examples/layers.md|layers|Layers and caches"
    "examples/decoder.md|decoder|A decoder"
    "examples/kinds.md|kinds|Kinds of attention"
    "examples/graphs.md|graphs|Graphs"
    "examples/onnx.md|onnx|ONNX operators"
    "include/attn/mpi.md|ranks|Distributed attention"
    "include/attn/contract.md|contract|The contract"
    "#Programs"
    "examples.md|examples|*Examples"
    "examples/train_gpt/README.md|train_gpt|Train a GPT"
    "examples/train_hybrid/README.md|train_hybrid|Train a hybrid"
    "examples/train_translation/README.md|train_translation|Train a translator"
    "examples/long_context/README.md|long_context|A long context"
    "examples/nn/README.md|nn|Shared layers"
    "#Look up"
    "include/attn/mods/README.md|mods|*Mods"
    "include/attn/positions.md|positions|Positions"
    "include/attn/errors.md|errors|*Errors"
    "include/attn/signatures.md|signatures|*Signatures"
    "|reference/index|*Reference"
    "#Measurements"
    "bench/README.md|measurements|*Measurements"
    "bench/recurrences.md|recurrences|Recurrences"
    "bench/ranks.md|scaling|Over ranks"
    "#Internals"
    "include/attn/README.md|architecture|*Internals"
    "include/attn/core/README.md|core|Core"
    "include/attn/cache/README.md|cache_package|Caches"
    "include/attn/recurrent/README.md|recurrent_package|Recurrences"
    "include/attn/layers/README.md|layers_package|Layers"
    "include/attn/jvp/README.md|jvp_package|Forward mode"
    "include/attn/mpi/README.md|mpi_package|MPI"
    ".github/CONTRIBUTING.md|contributing|Contributing"
    "tests/faults/README.md|faults|Planted faults")

# The page of examples/web, if it has been built.
set(demo ${SOURCE_DIR}/build/web/index.html)
if(EXISTS ${demo})
  list(INSERT pages 2 "|demo|Models in your browser")
  set(has_demo true)
else()
  set(has_demo false)
endif()

# The page of tests/report, if it has been written.
set(report ${SOURCE_DIR}/build/report.html)
set(has_report false)
if(EXISTS ${report})
  set(has_report true)
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

# The link to the source: where the repository was cloned from, if that is a public address, or else an archive.
set(source "")
find_program(git git)
if(git)
  execute_process(COMMAND ${git} remote get-url origin WORKING_DIRECTORY ${SOURCE_DIR} OUTPUT_VARIABLE source
                  ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT source MATCHES "^https://[^@]*$")
    set(source attn-${VERSION}.tar.gz)
    execute_process(COMMAND ${git} archive --prefix=attn-${VERSION}/ -o ${made}/${source} HEAD
                    WORKING_DIRECTORY ${SOURCE_DIR} RESULT_VARIABLE code ERROR_QUIET)
    if(code)
      set(source "")
    endif()
  endif()
endif()

# The bar above each page, with the menu of all pages; `up` leads to the folder of the pages.
function(navigation current up result)
  set(bar "")
  set(menu "")
  set(marked index)
  foreach(page IN LISTS pages)
    if(page MATCHES "^[^|]*\\|([^|]*)\\|([*]?)")
      if(CMAKE_MATCH_2)
        set(candidate ${CMAKE_MATCH_1})
      endif()
      if(CMAKE_MATCH_1 STREQUAL current)
        set(marked ${candidate})
      endif()
    endif()
  endforeach()
  foreach(page IN LISTS pages)
    if(page MATCHES "^#(.*)")
      string(APPEND menu "</div>\n<div><b>${CMAKE_MATCH_1}</b>\n")
      continue()
    endif()
    string(REGEX MATCH "^[^|]*\\|([^|]*)\\|([*]?)(.*)$" page "${page}")
    set(name ${CMAKE_MATCH_1})
    set(is_in_bar "${CMAKE_MATCH_2}")
    set(title "${CMAKE_MATCH_3}")
    set(mark "")
    if(name STREQUAL marked)
      set(mark " aria-current=\"page\"")
    endif()
    if(is_in_bar)
      string(APPEND bar "<a href=\"${up}${name}.html\"${mark}>${title}</a>\n")
    endif()
    set(mark "")
    if(name STREQUAL current)
      set(mark " aria-current=\"page\"")
    endif()
    string(APPEND menu "<a href=\"${up}${name}.html\"${mark}>${title}</a>\n")
  endforeach()
  string(REGEX REPLACE "^</div>\n" "" menu "${menu}")
  set(to_source "${source}")
  if(source AND NOT source MATCHES "^https:")
    set(to_source "${up}${source}")
  endif()
  if(to_source)
    string(APPEND menu "<a href=\"${to_source}\">Source</a>\n")
    set(to_source "<a class=\"source\" href=\"${to_source}\">Source</a>\n")
  endif()
  set(${result}
      "<div class=\"bar\">
<a class=\"name\" href=\"${up}index.html\">attn <small>${VERSION}</small></a>
<nav class=\"pages\" aria-label=\"Pages\">
${bar}</nav>
<details class=\"menu\"><summary>All pages</summary>
<nav aria-label=\"All pages\">
${menu}</div>
</nav>
</details>
<div class=\"search\" hidden><input type=\"search\" placeholder=\"Search\" aria-label=\"Search all pages\"><ul></ul></div>
${to_source}</div>"
      PARENT_SCOPE)
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
# Alphabetical lists of members, which the search of the site makes redundant; no page links to them.
file(GLOB lists ${WORK_DIR}/reference/functions*.html ${WORK_DIR}/reference/globals*.html
     ${WORK_DIR}/reference/namespacemembers*.html)
file(REMOVE ${lists})
file(RENAME ${WORK_DIR}/reference ${made}/reference)

# The page of examples: the source of each program and its output.
include(${SITE_SOURCE}/Examples.cmake)
examples_page(${WORK_DIR}/examples.md)

# Settings of the Lua filter.
navigation(architecture "../" above)
set(lua "return {\n  source = [==[${SOURCE_DIR}]==],\n  pictures = [==[${PICTURES}]==],\n  made = [==[${made}]==],\n")
string(APPEND lua "  navigation = [==[${above}]==],\n  has_demo = ${has_demo},\n  has_report = ${has_report},\n")
string(APPEND lua "  tags = [==[${WORK_DIR}/reference.tag]==],\n  pages = {\n")
foreach(page IN LISTS pages)
  if(page MATCHES "^([^|]+)\\|([^|]*)\\|")
    string(APPEND lua "    [\"${CMAKE_MATCH_1}\"] = \"${CMAKE_MATCH_2}.html\",\n")
  endif()
endforeach()
file(WRITE ${WORK_DIR}/site.lua "${lua}  },\n}\n")
file(MAKE_DIRECTORY ${made}/source)

# The filter appends the sections of each page to the list that the search reads.
file(WRITE ${made}/search.js "const sections = [\n")
foreach(page IN LISTS pages)
  if(NOT page MATCHES "^([^|]*)\\|([^|]*)\\|")
    continue()
  endif()
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
file(APPEND ${made}/search.js "];\n")

file(GLOB pictures ${PICTURES}/*.svg)
file(COPY ${pictures} DESTINATION ${made}/pictures)
file(GLOB runs ${PICTURES}/*.html)
if(runs)
  file(COPY ${runs} DESTINATION ${made}/runs)
endif()
file(COPY ${SITE_SOURCE}/style.css ${SITE_SOURCE}/site.js DESTINATION ${made})
if(has_report)
  file(COPY ${report} DESTINATION ${made}/runs)
endif()
if(EXISTS ${demo})
  file(COPY_FILE ${demo} ${made}/demo.html)
endif()

cmake_path(GET OUTPUT PARENT_PATH folder)
file(MAKE_DIRECTORY ${folder})
file(REMOVE_RECURSE ${OUTPUT})
file(RENAME ${made} ${OUTPUT})
message(STATUS "the site is in ${OUTPUT}/index.html")
