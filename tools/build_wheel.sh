#!/bin/sh
# Builds the Python package's wheel, as `pip wheel .` does, with kept build requirements and build folder:
# tools/build_wheel.sh [PIP-ARGUMENT...], for example -Ccmake.define.FLASHMOE_CUDA=ON. Writes build/dist/*.whl.
# Writes to standard error only, and away from a terminal nothing but failures.
set -eu
cd "$(dirname "$0")/.."
tools/bootstrap.sh wheel
environment=$PWD/.venv/wheel
rm -rf build/dist
mkdir -p build/dist
if ! PATH=$environment/bin:$PATH "$environment/bin/pip" wheel --disable-pip-version-check --no-build-isolation \
  --no-deps --wheel-dir build/dist -v "$@" . >build/dist/build.log 2>&1; then
  cat build/dist/build.log >&2
  echo "the wheel could not be built; the messages are above and in build/dist/build.log." >&2
  exit 1
fi
