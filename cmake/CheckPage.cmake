# cmake -D PAGE=<file.html> -D "WANT=<regex>;…" -P CheckPage.cmake
#
# Opens a page in a headless browser. Fails unless the page, after its script has run, matches each regular expression,
# and nothing was written to the console. Prints "skipped" if no browser is found.
find_program(browser NAMES chromium chromium-browser google-chrome)
if(NOT browser)
  message("skipped: there is no Chromium to open ${PAGE} in (apt-get install chromium)")
  return()
endif()
get_filename_component(page "${PAGE}" ABSOLUTE)
if(NOT EXISTS "${page}")
  message(FATAL_ERROR "${page} is missing")
endif()
execute_process(COMMAND ${browser} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --enable-logging=stderr
                        --user-data-dir=${page}.profile --dump-dom file://${page}
                RESULT_VARIABLE code OUTPUT_VARIABLE dom ERROR_VARIABLE log ENCODING NONE)
file(REMOVE_RECURSE "${page}.profile")

set(faults "")
if(NOT code STREQUAL 0)
  string(APPEND faults "the browser's exit code is ${code}\n")
endif()
foreach(want IN LISTS WANT)
  if(NOT dom MATCHES "${want}")
    string(APPEND faults "the page shows nothing that matches ${want}\n")
  endif()
endforeach()
if(log MATCHES "CONSOLE[^\n]*")
  string(APPEND faults "the console has ${CMAKE_MATCH_0}\n")
endif()
if(faults)
  message("${dom}")
  message(FATAL_ERROR "${faults}")
endif()
