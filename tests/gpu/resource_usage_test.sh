#!/bin/sh
# No kernel spills registers, but for those named here, outside their loops: bytes stored, measured by ptxas when the
# kernels were compiled (cmake/with_ptxas_report.sh). A spill more is a tile that waits for memory it did not wait for.
# And ptxas lets wgmma run side by side.
set -u
allowed() {
  case $1 in
    router_kernel_hopper_* | router_logits_kernel) echo 192 ;;  # the choice of experts, once a tile
    moe_kernel_tf32) echo 16 ;;   # where the actors' states are made, and the processors' idle steps: no tile reads them
    moe_kernel_bf16 | moe_kernel_fp16) echo 8 ;;  # the processors' idle steps
    moe_kernel_fp64) echo 264 ;;  # the checking engine: not tuned for speed
    *) echo 0 ;;
  esac
}
if grep -q '^CMAKE_BUILD_TYPE:STRING=Debug' "$FLASHMOE_BUILD_DIR/CMakeCache.txt"; then
  echo 'skipped: kernels compiled for a debugger keep everything in memory'
  exit 77
fi
failures=0 kernels=0
for report in "$FLASHMOE_BUILD_DIR"/src/CMakeFiles/flashmoe_cuda_objects.dir/cuda/*.cu.o.ptxas; do
  name=$(basename "$report" .cu.o.ptxas)
  most=$(allowed "$name")
  for stored in $(sed -n 's/.*stack frame, \([0-9]*\) bytes spill stores.*/\1/p' "$report"); do
    kernels=$((kernels + 1))
    [ "$stored" -le "$most" ] && continue
    echo "FAILED: a kernel of $name.cu spills $stored bytes, at most $most are allowed: see $report"
    failures=$((failures + 1))
  done
done
# A function call in the middle of wgmma would make ptxas wait for each.
for report in $(grep -l 'wgmma.mma_async instructions are serialized' "$FLASHMOE_BUILD_DIR"/src/CMakeFiles/flashmoe_cuda_objects.dir/cuda/*.cu.o.ptxas); do
  echo "FAILED: ptxas serialises the wgmma of $(basename "$report" .o.ptxas): see $report"
  failures=$((failures + 1))
done
if [ "$kernels" -lt 14 ]; then
  echo "FAILED: ptxas reported $kernels kernels, wanted at least 14: were they compiled by cmake/with_ptxas_report.sh?"
  exit 1
fi
echo "$kernels kernels, $failures failures"
[ "$failures" -eq 0 ]
