#!/usr/bin/env bash
# check-format.sh [root]: fails if a C++ file differs from what clang-format-14 makes of it, or has a line wider than the
# ColumnLimit of .clang-format: clang-format does not wrap comments. Checks only the widths where it is not installed.
set -euo pipefail
cd "${1:-"$(dirname "${BASH_SOURCE[0]}")/.."}"

sources() { find include tests bench examples cmake \( -name '*.h' -o -name '*.cpp' \) -print0; }
status=0

if command -v clang-format-14 >/dev/null; then
  sources | xargs -0 clang-format-14 --dry-run --Werror || status=1
else
  echo "clang-format-14 is not installed: only the widths of lines are checked."
fi

# Columns are characters, which grep counts only in a UTF-8 locale.
columns=$(sed -n 's/^ColumnLimit: *//p' .clang-format)
wide=$(sources | LC_ALL=C.UTF-8 xargs -0 grep -nHE "^.{$((columns + 1)),}" || true)
if [[ -n $wide ]]; then
  printf '%s\nThese lines are wider than %d columns.\n' "$wide" "$columns" >&2
  status=1
fi
[[ $status != 0 ]] || echo "All files are formatted."
exit "$status"
