#!/bin/sh
# Tests the Python package, and compares program and package with the transformers library, live:
# tools/test_torch.sh [PYTEST-ARGUMENT...], for example a file of tests/python/with_torch; default: all of them.
# Needs the Python environment .venv/torch (tools/bootstrap.sh torch), the program in FLASHMOE_PROGRAM and the library
# in FLASHMOE_LIBRARY, by default those of preset cpu.
set -eu
cd "$(dirname "$0")/.."
python=.venv/torch/bin/python
program=$(realpath -m "${FLASHMOE_PROGRAM:-build/cpu/cli/flashmoe}")
library=$(realpath -m "${FLASHMOE_LIBRARY:-build/cpu/src/libflashmoe.so}")
for needed in "$python" "$program" "$library"; do
  if [ ! -e "$needed" ]; then
    echo "$needed is missing: use make test-torch, which makes it" >&2
    exit 1
  fi
done
[ $# -gt 0 ] || set -- tests/torch tests/python
# Nothing is fetched: models are made on the spot.
FLASHMOE_PROGRAM=$program FLASHMOE_LIBRARY=$library HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 \
  exec "$python" -m pytest -q -p no:cacheprovider "$@"
