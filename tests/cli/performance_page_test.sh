#!/bin/sh
# docs/performance.md and its figures say what bench/results says. Needs python3 alone.
set -u
cd "$FLASHMOE_SOURCE_DIR"
PYTHONDONTWRITEBYTECODE=1 python3 tools/plot/plot.py --check-page
