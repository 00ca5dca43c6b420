#!/usr/bin/env bash
# times.sh <build folder> <time>: prints the slowest steps of the build since that time (in seconds since 1970), from
# ninja's log, and the slowest tests of ctest's last run, if it was later.
set -euo pipefail
folder=$1 since=$2 shown=10

# Lines of the log: start and end in ms, the output's time in ns, the output, a hash. An object is printed as
# `masks_test: masks_test.cpp`.
steps() {
  awk -F '\t' -v since="$since" '
    !/^#/ && $3 >= since * 1e9 && !seen[$4]++ {
      unit = $4
      sub(/\.o$/, "", unit)
      if (match(unit, /CMakeFiles\/[^\/]*\.dir\//)) {
        target = substr(unit, RSTART + 11, RLENGTH - 16)
        unit = target ": " substr(unit, RSTART + RLENGTH)
      }
      printf "%7.1f s  %s\n", ($2 - $1) / 1000, unit
    }' "$folder/.ninja_log" 2>/dev/null | sort -rn
}
tests() {
  local log=$folder/Testing/Temporary/LastTest.log
  [[ -e $log && $(stat -c %Y "$log") -gt $since ]] || return 0
  LC_ALL=C awk '
    /^[0-9]+\/[0-9]+ Test: / { name = $0; sub(/^[^ ]+ Test: /, "", name) }
    /^Test time = / { printf "%7.1f s  %s\n", $4, name }' "$log" | sort -rn
}
show() {
  local lines
  lines=$("$1")
  [[ -n $lines ]] || return 0
  awk -v what="$2" '{ sum += $1 } END { printf "The slowest of %d %s, %d s in sum:\n", NR, what, sum }' <<<"$lines"
  head -n "$shown" <<<"$lines"
}
show steps "steps of the build"
show tests "tests"
