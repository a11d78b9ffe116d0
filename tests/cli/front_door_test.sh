#!/bin/sh
# `make run ARGS=...` prints on standard output what the program prints and nothing else, and fails when it fails.
set -u
[ -n "${FLASHMOE_PROGRAM:-}" ] || { echo "skipped: this build has no program"; exit 77; }
preset=$(basename "$FLASHMOE_BUILD_DIR")
if [ "$FLASHMOE_BUILD_DIR" != "$FLASHMOE_SOURCE_DIR/build/$preset" ] ||
  ! grep -q "\"name\": \"$preset\"" "$FLASHMOE_SOURCE_DIR/CMakePresets.json"; then
  echo "skipped: make builds in build/<preset>, this build is in $FLASHMOE_BUILD_DIR"
  exit 77
fi
unset MAKEFLAGS MAKELEVEL MFLAGS
cd "$FLASHMOE_SOURCE_DIR" || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"build/$preset/cli/flashmoe" --help >"$work/wanted"
make run PRESET="$preset" ARGS=--help >"$work/got" 2>"$work/err" || {
  cat "$work/err"
  echo "FAILED: make run ARGS=--help failed"
  exit 1
}
diff "$work/wanted" "$work/got" || { echo "FAILED: make adds to the program's standard output"; exit 1; }

if make run PRESET="$preset" ARGS=no-such-command >"$work/got" 2>"$work/err"; then
  echo "FAILED: make run must fail when the program does"
  exit 1
fi
[ ! -s "$work/got" ] || { cat "$work/got"; echo "FAILED: an error must leave standard output empty"; exit 1; }
echo "make run is transparent"
