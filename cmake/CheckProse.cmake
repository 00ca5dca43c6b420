# cmake -D ROOT=<the project> [-D "FOLDERS=<folder>;…"] -P CheckProse.cmake
#
# Rejects phrases in comments, messages and pages for which there is always a plainer expression. Each is here because
# it was frequent, readers had to read it twice, and no correct sentence needs it. Lists every occurrence.
cmake_minimum_required(VERSION 3.22)

# phrase(<regular expression> <what to write>): rejects matches within one line of the text, which is converted to lower
# case.
set(phrases "")
set(remedies "")
macro(phrase regex remedy)
  list(APPEND phrases "${regex}")
  list(APPEND remedies "${remedy}")
endmacro()
phrase("(no|some)body" "name it: the caller, a thread, unused")
# "of its own heads" is English.
phrase("of (its|their) own([^ a-z]| (that|which|if|for|in|and|or|to|by|at|on|with|than|as) )" "its own ..., their own ..., separate")
phrase("behind (each|one|the) (an)?other" "contiguous, in sequence")
phrase("(stand|stands|lie|lies) behind" "follows, is after")
phrase("what (stand|stands|lies) " "name it: the element, the header, the text")
phrase("that there (are|is) (not|none)" "absent, that do not exist")
phrase("(of|for|by) so many " "with n ..., for n ..., by n ...")
phrase("lone quer" "unshared query")
phrase("(numbers|floats|integers|values|keys|caches) of (8|16|32) bits" "16-bit floats, 8-bit caches")

if(NOT FOLDERS)
  set(FOLDERS README.md .ci/run .github CMakeLists.txt bench bench/run cmake examples include tests tests/run)
endif()
set(files "")
foreach(folder IN LISTS FOLDERS)
  if(IS_DIRECTORY ${ROOT}/${folder})
    file(GLOB_RECURSE found RELATIVE ${ROOT} ${ROOT}/${folder}/*.h ${ROOT}/${folder}/*.cpp ${ROOT}/${folder}/*.md
         ${ROOT}/${folder}/*.cmake ${ROOT}/${folder}/*.txt)
    list(APPEND files ${found})
  else()
    list(APPEND files ${folder})
  endif()
endforeach()
list(FILTER files EXCLUDE REGEX "CheckProse.cmake$|tests/sources/pages/(prose.md|CMakeLists.txt)$")
if(NOT files)
  message(FATAL_ERROR "no files in ${ROOT}")
endif()

set(faults "")  # indented lines, which CMake does not rewrap
foreach(file IN LISTS files)
  file(READ ${ROOT}/${file} text)
  string(TOLOWER "${text}" text)
  foreach(regex remedy IN ZIP_LISTS phrases remedies)
    if(NOT text MATCHES "${regex}")
      continue()
    endif()
    string(REGEX REPLACE "[][;\\]" " " lines "${text}")  # these are special in CMake lists
    string(REPLACE "\n" ";" lines "${lines}")
    set(number 0)
    foreach(line IN LISTS lines)
      math(EXPR number "${number} + 1")
      if(line MATCHES "${regex}")
        string(APPEND faults "  ${file}:${number}: \"${CMAKE_MATCH_0}\"; write: ${remedy}\n")
      endif()
    endforeach()
  endforeach()
endforeach()
list(LENGTH files count)
if(faults)
  message(FATAL_ERROR "phrases to write in plain English:\n${faults}")
endif()
message(STATUS "${count} files contain no rejected phrases")
