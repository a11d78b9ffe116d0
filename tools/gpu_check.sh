#!/bin/sh
# Proves the CUDA backend on the GPUs of this machine, in one command: every test of labels gpu and multi_gpu, 2,000
# random layers against two oracles, compute-sanitizer, the Python package under python3's torch, timings beside
# PyTorch's, the program's sweep and timelines.
# Usage: tools/gpu_check.sh [NUM_GPUS] [OPTION...]   (the options are gpu_check.py's: --help)
# Records go to bench/results/. Builds preset cuda first, unless --programs names a build folder from elsewhere.
set -eu
cd "$(dirname "$0")/.."
case " $* " in
  *" --programs"*) ;;
  *) tools/build.sh cuda gpu_tests flashmoe flashmoe_cli ;;
esac
exec python3 tools/gpu_check.py "$@"
