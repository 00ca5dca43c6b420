# cmake -D SITE=<folder> -P CheckLinks.cmake
#
# Checks every link of every page in the folder: it must lead to an existing file, and, if it has a #, to an element of
# that name. Pages, styles, scripts and pictures must all be in the folder; nothing is fetched from elsewhere. Lists all
# faults.
cmake_minimum_required(VERSION 3.22)
include(${CMAKE_CURRENT_LIST_DIR}/Links.cmake)

get_filename_component(SITE ${SITE} ABSOLUTE)  # file() compares absolute paths
file(GLOB_RECURSE pages RELATIVE ${SITE} ${SITE}/*.html)
list(FILTER pages EXCLUDE REGEX "^demo[.]html$")  # the demo has its own test
if(NOT pages)
  message(FATAL_ERROR "no pages in ${SITE}")
endif()
set(faults "")  # indented lines, which CMake does not rewrap

# Returns the attributes of a page that have these names, escaped so that CMake's lists do not split them.
function(attributes page names result)
  file(READ ${SITE}/${page} text)
  string(REPLACE ";" "%3B" text "${text}")
  string(REGEX REPLACE "[][]" "_" text "${text}")
  string(REGEX MATCHALL "[ \n](${names})=\"[^\"]*\"" found "${text}")
  list(TRANSFORM found REPLACE "^.[a-z]+=\"(.*)\"$" "\\1")
  list(REMOVE_DUPLICATES found)
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

foreach(page IN LISTS pages)
  attributes(${page} "id|name" ids)
  set("ids of ${page}" "${ids}")
endforeach()

set(count 0)
foreach(page IN LISTS pages)
  cmake_path(GET page PARENT_PATH folder)
  file(READ ${SITE}/${page} text)
  if(text MATCHES "(src=|<link [^>]*href=)\"(https?:)?//([^\"]*)\"")
    string(APPEND faults "  ${page}: ${CMAKE_MATCH_3} is fetched from elsewhere\n")
  endif()
  attributes(${page} "href|src" links)
  foreach(link IN LISTS links)
    if(link MATCHES "^(https://|javascript:|data:,$|$)" OR link STREQUAL "#")
      continue()
    endif()
    math(EXPR count "${count} + 1")
    split_link("${link}" file anchor)
    if(file STREQUAL "")
      set(target ${page})
    else()
      cmake_path(SET target NORMALIZE "${folder}/${file}")
      string(REGEX REPLACE "^/" "" target "${target}")
    endif()
    if(target MATCHES "^\\.\\./" OR NOT EXISTS ${SITE}/${target})
      string(APPEND faults "  ${page}: ${link} does not exist\n")
    elseif(anchor AND NOT anchor IN_LIST "ids of ${target}")
      string(APPEND faults "  ${page}: ${link} is not an id on that page\n")
    endif()
  endforeach()
endforeach()

if(faults)
  message(FATAL_ERROR "links that lead nowhere:\n${faults}")
endif()
list(LENGTH pages number)
message(STATUS "${count} links of ${number} pages are valid")
