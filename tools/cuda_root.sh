#!/bin/sh
# Prints the root folder of the CUDA toolkit (>= 13.0, with libcu++) that the build uses; exits 1 when there is none.
# Order: CUDA_PATH, CUDA_HOME, nvcc on PATH, /usr/local/cuda, the wheels in .venv/tools (tools/bootstrap.sh).
# FLASHMOE_USE_WHEEL_CUDA=1 takes the wheels whatever else is there.
set -u
project=$(cd "$(dirname "$0")/.." && pwd)

# nvcc on PATH may be a wrapper script or a link; its dry run names the toolkit it belongs to.
root_of_nvcc() {
  echo | nvcc -x cu --dryrun - 2>&1 | sed -n 's/^#\$ TOP=//p'
}

usable() {
  [ -n "$1" ] && [ -x "$1/bin/nvcc" ] && [ -e "$1/include/cccl/cuda/atomic" ] || return 1
  release=$("$1/bin/nvcc" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\..*/\1/p')
  [ "${release:-0}" -ge 13 ]
}

if [ "${FLASHMOE_USE_WHEEL_CUDA:-0}" != 1 ]; then
  for root in "${CUDA_PATH:-}" "${CUDA_HOME:-}" "$(command -v nvcc >/dev/null && root_of_nvcc)" /usr/local/cuda; do
    if usable "$root"; then
      cd "$root" && pwd -P
      exit
    fi
  done
fi
for root in "$project"/.venv/tools/lib/python3*/site-packages/nvidia/cu13; do
  if usable "$root"; then
    echo "$root"
    exit
  fi
done
exit 1
