#!/usr/bin/env bash
# Installs the Debian packages that building the project needs, and those named as arguments. If all are installed, it
# does nothing and needs no privileges.
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config libeigen3-dev libgtest-dev libbenchmark-dev libcli11-dev nlohmann-json3-dev "$@")

if ! command -v dpkg-query apt-get >/dev/null; then
  echo "apt was not found, so nothing is installed. The build needs these Debian packages: ${packages[*]}"
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  if ! command -v sudo >/dev/null; then
    echo "These packages are missing: ${missing[*]}" >&2
    echo "Run this as root or with sudo installed, or install them yourself: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "== Installing: ${missing[*]}"
apt() { ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@" </dev/null; }
apt update
apt install --yes --no-install-recommends "${missing[@]}"
