#!/bin/sh
# Compares the program with the transformers library, live: tools/test_torch.sh [PYTEST-ARGUMENT...]
# Needs the Python environment .venv/torch (tools/bootstrap.sh torch) and the program in FLASHMOE_PROGRAM, by default
# that of preset cpu.
set -eu
cd "$(dirname "$0")/.."
python=.venv/torch/bin/python
program=$(realpath -m "${FLASHMOE_PROGRAM:-build/cpu/cli/flashmoe}")
for needed in "$python" "$program"; do
  if [ ! -x "$needed" ]; then
    echo "$needed is missing: use make test-torch, which makes it" >&2
    exit 1
  fi
done
# Nothing is fetched: models are made on the spot.
FLASHMOE_PROGRAM=$program HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1 \
  exec "$python" -m pytest -q -p no:cacheprovider tests/torch "$@"
