#!/bin/sh
# Configures a preset when needed and builds it: tools/build.sh PRESET [TARGET...]
# Writes to standard error only, and away from a terminal nothing but failures and that it configures.
set -eu
preset=$1
shift
cd "$(dirname "$0")/.."
folder=build/$preset
mkdir -p "$folder"

if [ ! -e "$folder/build.ninja" ] || [ CMakePresets.json -nt "$folder/build.ninja" ]; then
  echo "configuring preset $preset" >&2
  if ! cmake --preset "$preset" >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    echo "cmake could not configure preset $preset; its messages are above and in $folder/configure.log." >&2
    exit 1
  fi
fi
if [ -t 2 ]; then
  ninja -C "$folder" "$@" >&2
elif ! ninja -C "$folder" --quiet "$@" >"$folder/build.log" 2>&1; then
  cat "$folder/build.log" >&2
  exit 1
fi
