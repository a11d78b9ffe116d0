#!/bin/sh
# Makes this machine able to build and test, and does nothing where it already is.
#   tools/bootstrap.sh [--dry-run] [build|python|torch|wheel|format|plot]
# build (default)  Debian packages of tools/debian-packages.txt, and a CUDA compiler from its PyPI wheels in
#                  .venv/tools where no toolkit >= 13.0 is found
# python           also .venv/python, for the tests of the Python package that need no torch, and for its reference
# torch            also .venv/torch, the oracle of `make test-torch`
# wheel            .venv/wheel with what pyproject.toml says a build of the package needs
# format           .venv/format with clang-format
# plot             .venv/plot with matplotlib, for `flashmoe plot`
# --dry-run prints what would be done, one line each, and changes nothing.
# Packages are installed by apt as root; otherwise the script says what is missing and how to get it, and exits 1.
# Everything is written to standard error, --dry-run's plan to standard output.
set -eu
project=$(cd "$(dirname "$0")/.." && pwd)
tools=$project/tools
venvs=$project/.venv
dry_run=no
part=build

for argument in "$@"; do
  case $argument in
    --dry-run) dry_run=yes ;;
    build | python | torch | wheel | format | plot) part=$argument ;;
    *) echo "bootstrap: '$argument' is unknown; use [--dry-run] [build|python|torch|wheel|format|plot]." >&2; exit 2 ;;
  esac
done

say() { echo "bootstrap: $*" >&2; }
plan() { echo "would $*"; }

header_exists() {  # one of several, separated by commas
  for header in $(echo "$1" | tr ',' ' '); do
    for folder in /usr/local/include /usr/include /usr/include/*-linux-gnu; do
      [ ! -e "$folder/$header" ] || return 0
    done
  done
  return 1
}

# Presence by the probe of the package list, for systems without dpkg.
probe() {
  case $1 in
    command:*) command -v "${1#*:}" >/dev/null ;;
    python:*) python3 -c "import ${1#*:}" 2>/dev/null ;;
    header:*) header_exists "${1#*:}" ;;
  esac
}

missing_packages() {
  installed=
  if command -v dpkg-query >/dev/null; then
    installed=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 2>/dev/null | sed -n 's/ installed$//p')
  fi
  grep -v '^#' "$tools/debian-packages.txt" | while read -r package _ presence; do
    if [ -n "$installed" ]; then
      echo "$installed" | grep -qxF "$package" || echo "$package"
    else
      probe "$presence" || echo "$package"
    fi
  done
}

install_packages() {
  missing=$(missing_packages | tr '\n' ' ')
  missing=${missing% }
  [ -n "$missing" ] || return 0
  if [ "$dry_run" = yes ]; then
    plan "install packages: $missing"
  elif ! command -v apt-get >/dev/null; then
    say "these packages (Debian's names) are missing: $missing." \
      "There is no apt-get here: install them with this system's package manager, then run make again."
    exit 1
  elif [ "$(id -u)" != 0 ]; then
    say "these packages are missing and only root can install them: run" \
      "'sudo apt-get update && sudo apt-get install --no-install-recommends $missing', then make again."
    exit 1
  else
    say "installing $missing"
    # shellcheck disable=SC2086  # one word per package
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends $missing; } >&2 || {
      say "apt-get could not install $missing; see its message above."
      exit 1
    }
  fi
}

# A virtual environment of one requirements file, made anew whenever that file changes.
make_venv() {  # name requirements-file
  stamp=$venvs/$1/requirements.installed
  if cmp -s "$2" "$stamp"; then return 0; fi
  if [ "$dry_run" = yes ]; then
    plan "make .venv/$1 with: $(grep -v '^#' "$2" | tr '\n' ' ')"
    return 0
  fi
  say "making .venv/$1"
  rm -rf "${venvs:?}/$1"
  { python3 -m venv "$venvs/$1" && "$venvs/$1/bin/pip" install -q --disable-pip-version-check -r "$2"; } >&2 || {
    say "pip could not install $(basename "$2") into .venv/$1; PyPI must be reachable, see its message above."
    exit 1
  }
  # The CUDA wheels lack the two links that a toolkit has and that nvcc and CMake look for.
  for root in "$venvs/$1"/lib/python3*/site-packages/nvidia/cu13; do
    [ -x "$root/bin/nvcc" ] || continue
    ln -sfn lib "$root/lib64"
    ln -sfn libcudart.so.13 "$root/lib/libcudart.so"
  done
  cp "$2" "$stamp"
}

install_cuda() {
  [ "${FLASHMOE_USE_WHEEL_CUDA:-0}" != 1 ] && "$tools/cuda_root.sh" >/dev/null && return 0
  make_venv tools "$tools/requirements-cuda.txt"
  if [ "$dry_run" = no ] && ! "$tools/cuda_root.sh" >/dev/null; then
    say "the CUDA wheels in .venv/tools give no working nvcc; remove that folder and run make again."
    exit 1
  fi
}

# pyproject.toml's build requirements, one a line.
wheel_requirements() { sed -n '/^requires = \[/,/^\]/s/^ *"\(.*\)",$/\1/p' "$project/pyproject.toml"; }
install_wheel() {
  if [ "$dry_run" = yes ]; then
    plan "make .venv/wheel with: $(wheel_requirements | tr '\n' ' ')"
    return 0
  fi
  mkdir -p "$venvs"
  wheel_requirements >"$venvs/requirements-wheel.txt"
  make_venv wheel "$venvs/requirements-wheel.txt"
}

# One bootstrap at a time in a checkout.
if [ "$dry_run" = no ] && command -v flock >/dev/null; then
  mkdir -p "$venvs"
  exec 9>"$venvs/lock"
  flock 9
fi

case $part in
  build) install_packages; install_cuda ;;
  python) install_packages; install_cuda; make_venv python "$tools/requirements-python.txt" ;;
  torch) install_packages; install_cuda; make_venv torch "$tools/requirements-torch.txt" ;;
  wheel) install_wheel ;;
  format) make_venv format "$tools/requirements-format.txt" ;;
  plot) make_venv plot "$tools/requirements-plot.txt" ;;
esac
