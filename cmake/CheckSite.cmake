# cmake -D SITE=<folder> -D WORK_DIR=<folder> -P CheckSite.cmake
#
# Opens every page of the folder in a headless browser, 360 pixels wide, as on a phone. Fails unless each page has a
# style, all its pictures and a navigation that marks it, is no wider than the window, and writes nothing to the
# console. Prints "skipped" if no browser is found.
cmake_minimum_required(VERSION 3.22)

find_program(browser NAMES chromium chromium-browser google-chrome)
if(NOT browser)
  message("skipped: there is no Chromium to open ${SITE} in (apt-get install chromium)")
  return()
endif()
file(GLOB_RECURSE pages RELATIVE ${SITE} ${SITE}/*.html)
list(FILTER pages EXCLUDE REGEX "^demo[.]html$")  # the demo has its own style and test
list(LENGTH pages number)
if(number EQUAL 0)
  message(FATAL_ERROR "no pages in ${SITE}")
endif()

# The pages are opened in frames of one page, whose script inspects them.
set(script [==[
<script>
function faultsOf(frame) {
  const faults = [], page = frame.contentDocument, window = frame.contentWindow;
  if (!page || !page.title) return ["cannot be read, or has no title"];
  const width = page.documentElement.scrollWidth;
  if (width > frame.clientWidth) {
    const widest = [...page.body.querySelectorAll("*")].filter(e => e.getBoundingClientRect().right > frame.clientWidth + 0.5);
    const names = widest.slice(0, 4).map(e => e.tagName + (e.className ? "." + e.className : ""));
    faults.push("is " + width + " pixels wide in a window of " + frame.clientWidth + ": " + names.join(", "));
  }
  for (const image of page.images)
    if (!image.complete || image.naturalWidth === 0) faults.push("has no picture at " + image.getAttribute("src"));
  if (window.getComputedStyle(page.body).marginLeft !== "0px") faults.push("has no style");
  const isOfSite = !frame.dataset.page.startsWith("runs/");  // those are pages that programs wrote
  if (isOfSite && page.querySelectorAll("nav.pages [aria-current]").length !== 1)
    faults.push("is not marked in the navigation");
  if (isOfSite && !page.querySelector("main h1, main .title")) faults.push("has no heading");
  return faults;
}
window.onload = () => {
  const frames = [...document.querySelectorAll("iframe")];
  const lines = frames.flatMap(f => faultsOf(f).map(fault => "  " + f.dataset.page + " " + fault));
  document.body.textContent = "opened " + frames.length + "\n" + lines.join("\n") + "\nend";
};
</script>
]==])

set(faults "")  # indented lines, which CMake does not rewrap
set(opened 0)
set(together 40)  # frames in one page: takes a few seconds and a few hundred MiB
while(pages)
  list(LENGTH pages left)
  if(left LESS together)
    set(together ${left})
  endif()
  list(SUBLIST pages 0 ${together} some)
  list(REMOVE_ITEM pages ${some})
  set(html "<!DOCTYPE html>\n<meta charset=\"utf-8\">\n${script}")
  foreach(page IN LISTS some)
    string(APPEND html "<iframe width=\"360\" height=\"800\" frameborder=\"0\" data-page=\"${page}\" src=\"file://${SITE}/${page}\">"
                       "</iframe>\n")
  endforeach()
  file(WRITE ${WORK_DIR}/check.html "${html}")
  # These flags let a page from a file inspect others.
  execute_process(
    COMMAND ${browser} --headless --no-sandbox --disable-gpu --disable-dev-shm-usage --enable-logging=stderr
            --allow-file-access-from-files --disable-web-security --user-data-dir=${WORK_DIR}/check.profile --dump-dom
            file://${WORK_DIR}/check.html
    RESULT_VARIABLE code OUTPUT_VARIABLE dom ERROR_VARIABLE log ENCODING NONE)
  if(NOT code STREQUAL 0 OR NOT dom MATCHES "opened ${together}\n(.*)\nend")
    message(FATAL_ERROR "the browser (exit code ${code}) did not finish opening: ${some}\n${dom}\n${log}")
  endif()
  if(CMAKE_MATCH_1)
    string(APPEND faults "${CMAKE_MATCH_1}\n")
  endif()
  string(REGEX MATCHALL "CONSOLE[^\n]*" said "${log}")
  foreach(line IN LISTS said)
    string(APPEND faults "  the console has ${line}\n")
  endforeach()
  math(EXPR opened "${opened} + ${together}")
endwhile()
file(REMOVE_RECURSE ${WORK_DIR}/check.profile)

if(faults)
  message(FATAL_ERROR "pages with faults:\n${faults}")
endif()
message(STATUS "${opened} pages were opened")
