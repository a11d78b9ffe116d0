#!/bin/sh
# Builds and tests presets one after another, each to its end, and fails when any of them failed:
# tools/test.sh [PRESET...], without arguments all of cpu, cpu-asan, cpu-tsan and cuda.
# Preset cuda adds what the others lack: the GPU code compiles, its tests run or say why they were skipped, and the Hopper kernel
# runs on the host.
set -u
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- cpu cpu-asan cpu-tsan cuda
failed=
for preset; do
  started=$(date +%s)
  case $preset in
    cuda*) targets="gpu_tests on_host_kernel_test" only="--label-regex gpu|on_host" ;;
    *) targets= only= ;;
  esac
  # shellcheck disable=SC2086  # empty means no argument
  if tools/build.sh "$preset" $targets; then
    built=$(date +%s)
    echo "== preset $preset: built in $((built - started)) s"
    ctest --preset "$preset" $only || failed="$failed $preset"
    # Why tests were skipped, as they said it: gtest in the line after the test's place, scripts after "skipped:".
    sed -n -e '/: Skipped$/{n;s/^/skipped: /p;}' -e '/^skipped: /p' "build/$preset/Testing/Temporary/LastTest.log" |
      sort | uniq -c
    echo "== preset $preset: tested in $(($(date +%s) - built)) s"
  else
    failed="$failed $preset"
  fi
done
if [ -n "$failed" ]; then
  echo "FAILED presets:$failed" >&2
  exit 1
fi
echo "all presets passed: $*"
