#!/bin/sh
# The Python package on this build's library, without torch.
set -eu
python=$FLASHMOE_SOURCE_DIR/.venv/python/bin/python
if [ ! -x "$python" ]; then
  echo "skipped: $python is missing; 'tools/bootstrap.sh python' makes it"
  exit 77
fi
FLASHMOE_LIBRARY=$FLASHMOE_BUILD_DIR/src/libflashmoe.so PYTHONDONTWRITEBYTECODE=1 \
  exec "$python" -m pytest -q -p no:cacheprovider "$FLASHMOE_SOURCE_DIR/tests/python/plain"
