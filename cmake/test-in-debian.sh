#!/usr/bin/env bash
# test-in-debian.sh <release> <compiler> <folder>
#
# Installs another release of Debian in the folder, then builds and runs a sample of the tests (preset `sample`) in it,
# with one of that release's compilers, such as g++-14, and its Eigen. Needs root and debootstrap. Exits with 77 if the
# release or its packages cannot be installed.
set -euo pipefail
release=$1 compiler=$2 root=$(realpath -m "$3")
cd "$(dirname "${BASH_SOURCE[0]}")/.."
packages=(cmake libeigen3-dev libgtest-dev ninja-build nlohmann-json3-dev "$compiler")

mirror=$(grep -hoE '^(URIs:|deb) .*' /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources 2>/dev/null |
  grep -oE '[a-z]+://[^ ]+' | head -n 1 || true)
rm -rf --one-file-system "$root"
mkdir -p "$root"
# Nothing is mounted, because a container may forbid it. The index of a rarely updated mirror may have expired, so its
# date is not checked; its signature is.
inside() { chroot "$root" env DEBIAN_FRONTEND=noninteractive CI="${CI:-}" ATTN_TEST_SEED="${ATTN_TEST_SEED:-}" "$@"; }
if ! { debootstrap --variant=minbase --include=ca-certificates "$release" "$root" ${mirror:+"$mirror"} &&
  inside apt-get -qq -o Acquire::Check-Valid-Until=false update &&
  inside apt-get -qq install --yes --no-install-recommends "${packages[@]}"; } >"$root.log" 2>&1 </dev/null; then
  tail -n 3 "$root.log"
  echo "Debian $release cannot be installed here." >&2
  exit 77
fi

mkdir -p "$root/attn"
git ls-files -z | tar --create --null --files-from - | tar --extract --directory "$root/attn"
inside "$compiler" --version | head -n 1
# GoogleTest was compiled by the release's default compiler, and needs that compiler's libstdc++ or a newer one.
inside bash -euc "cd /attn && cmake --preset sample -D CMAKE_CXX_COMPILER=$compiler \
    -D CMAKE_CXX_STANDARD_LIBRARIES=-l:libstdc++.so.6
  cmake --build --preset sample --parallel $(nproc)
  ctest --preset sample --no-label-summary"
