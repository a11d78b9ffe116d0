#!/usr/bin/env bash
# Builds the GPU tests and timings, the program and the shared library without CMake, for a machine with GPUs, many cores
# and a CUDA toolkit, but without the project's host libraries. DEPENDENCIES holds include/{fmt,spdlog,gtest,gmock,nlohmann,CLI}
# and lib/lib{gtest,gmock}.a; OpenBLAS is replaced by tests/support/plain_gemm.cpp. Programs go to OUTPUT/tests/gpu and
# OUTPUT/cli, the library to OUTPUT/src, where tools/gpu_check.sh --programs OUTPUT finds them. PART cli: the program alone,
# which is what stage bench needs; objects: nothing is linked; link: nothing is compiled, OUTPUT/objects come from a machine
# with the same toolkit.
# Usage: tools/gpu_programs.sh DEPENDENCIES OUTPUT [GPU architecture, default 90a] [PART, default all]
set -eu
dependencies=$(realpath "$1") output=$(realpath -m "$2") architecture=${3:-90a} part=${4:-all}
case $part in all | cli | objects | link) ;; *) echo "gpu_programs.sh: PART '$part' is none of all, cli, objects, link" >&2; exit 2 ;; esac
cd "$(dirname "$0")/.."
objects=$output/objects
mkdir -p "$objects/flashmoe" "$output/src" "$output/tests/gpu/old_driver" "$output/cli"

cuda=$(nvcc --dryrun -x cu -c /dev/null 2>&1 | sed -n 's/^#\$ TOP=//p')
version=$(sed -n 's/^project(flashmoe VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
IFS=. read -r major minor patch <<<"$version"
sed -e "s/@PROJECT_VERSION@/$version/" -e "s/@PROJECT_VERSION_MAJOR@/$major/" -e "s/@PROJECT_VERSION_MINOR@/$minor/" \
  -e "s/@PROJECT_VERSION_PATCH@/$patch/" cmake/version.hpp.in >"$objects/flashmoe/version.hpp"
# As cmake/commit.cmake, but for edits: what travels here is no checkout. Records take --commit.
echo "#define FLASHMOE_COMMIT \"$(git rev-parse HEAD 2>/dev/null || echo unknown)\"" >"$objects/program_commit.hpp"

includes="-Iinclude -Isrc -Itests -I$objects"
includes="$includes -isystem $dependencies/include -isystem $cuda/include -isystem $cuda/include/cccl"
host="g++ -std=c++20 -fPIC -DFMT_HEADER_ONLY $includes -c"
target="-gencode arch=compute_$architecture,code=sm_$architecture"
device="nvcc -std=c++20 -O3 -lineinfo -Xcompiler -fPIC $target --expt-relaxed-constexpr $includes -c"
commands() {
  for file in src/cuda/*.cu; do  # slowest first
    echo "$device $file -o $objects/${file//\//.}.o"
  done
  if [ "$part" != cli ]; then
    for file in tests/gpu/*.cu bench/gpu/random_fill.cu; do echo "$device $file -o $objects/${file//\//.}.o"; done
    for file in tests/gpu/*_test.cpp bench/gpu/{layer,engine}_timing.cpp tests/support/main.cpp; do
      echo "$host -O1 $file -o $objects/${file//\//.}.o"
    done
  fi
  for file in cli/*.cpp; do echo "$host -Icli -O1 $file -o $objects/${file//\//.}.o"; done
  for file in src/{core,actors,planner,cpu,cuda,cuda/hopper,fabric,io,api}/*.cpp; do
    [ "$file" = src/cpu/gemm.cpp ] ||
      echo "$host -O3 -march=x86-64-v3 -DFLASHMOE_HAS_CUDA $file -o $objects/${file//\//.}.o"
  done
  echo "$host -O3 -march=x86-64-v3 -ffast-math tests/support/plain_gemm.cpp -o $objects/plain_gemm.o"
}
[ "$part" = link ] || commands | xargs -P "$(nproc)" -I{} sh -c '{} || { echo "failed: {}" >&2; exit 255; }'
[ "$part" != objects ] || exit 0

rm -f "$objects/libflashmoe.a"
find "$objects" -name 'src.*.o' -o -name plain_gemm.o -o -name 'tests.gpu.*.cu.o' ! -name '*_test.cu.o' |
  xargs ar rcs "$objects/libflashmoe.a"
link() {  # PROGRAM OBJECT...
  echo "nvcc $target ${*:2} $objects/libflashmoe.a -L$dependencies/lib -lgmock -lgtest -lpthread -ldl" \
    "-Xlinker --strip-all -o $output/$1"
}
if [ "$part" = cli ]; then
  $(link cli/flashmoe "$objects"/cli.*.o)
  exit
fi
{
  for test in "$objects"/tests.gpu.*_test.*.o; do
    name=${test##*/tests.gpu.}
    link "tests/gpu/gpu_${name%%.*}" "$test" "$objects/tests.support.main.cpp.o"
  done
  link tests/gpu/gpu_layer_timing "$objects/bench.gpu.layer_timing.cpp.o"
  link cli/flashmoe "$objects"/cli.*.o
  link tests/gpu/gpu_engine_timing "$objects/bench.gpu.engine_timing.cpp.o" "$objects/bench.gpu.random_fill.cu.o"
  echo "nvcc $target -shared" $(find "$objects" -name 'src.*.o') "$objects/plain_gemm.o" \
    "-Xlinker --version-script=src/exports.map -lpthread -ldl -o $output/src/libflashmoe.so"
} | xargs -P "$(nproc)" -I{} sh -c '{} || { echo "failed: {}" >&2; exit 255; }'
gcc -shared -fPIC -Wl,-soname,libcuda.so.1 tests/gpu/old_driver.c -o "$output/tests/gpu/old_driver/libcuda.so.1"
