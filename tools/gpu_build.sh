#!/usr/bin/env bash
# Compiles the kernels side by side and links GPU test programs from host objects made elsewhere: for a machine with
# GPUs and a toolkit, but without the host libraries. FOLDER holds lib/*.o, tests/NAME.o, programs/NAME.o and gtest's archives; they
# go to OUTPUT/NAME. Usage: tools/gpu_build.sh FOLDER OUTPUT [nvcc flags]
set -eu
folder=$1 output=$2; shift 2
mkdir -p "$output/kernels"
flags=(-std=c++20 -O3 -lineinfo -gencode arch=compute_90a,code=sm_90a --expt-relaxed-constexpr -Iinclude -Isrc -Itests "$@")
for source in src/cuda/moe_kernel_*.cu; do
  nvcc "${flags[@]}" -Xptxas -v -c "$source" -o "$output/kernels/$(basename "$source").o" 2> "$output/kernels/$(basename "$source").log" &
done
wait
grep -h "error\|spill\|registers" "$output"/kernels/*.log || true
for program in "$folder"/programs/*.o; do
  nvcc "$program" "$folder"/lib/*.o "$output"/kernels/*.o -o "$output/$(basename "$program" .o)" &
done
for test in "$folder"/tests/*.o; do
  nvcc "$test" "$folder"/lib/*.o "$output"/kernels/*.o -o "$output/$(basename "$test" .o)" -L"$folder" -lgtest -lgtest_main -lgmock -lpthread &
done
wait
