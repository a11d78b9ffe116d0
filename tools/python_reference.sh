#!/bin/sh
# Writes the reference of the Python package, from its docstrings: tools/python_reference.sh FOLDER
# Needs .venv/python, .venv/torch (tools/bootstrap.sh) and the library in FLASHMOE_LIBRARY.
set -eu
folder=$1
cd "$(dirname "$0")/.."
site_packages=$(echo "$PWD"/.venv/torch/lib/python3*/site-packages)
FLASHMOE_LIBRARY=$(realpath "$FLASHMOE_LIBRARY") PYTHONPATH=$PWD/python:$site_packages PYTHONDONTWRITEBYTECODE=1 \
  .venv/python/bin/python -m pdoc --output-directory "$folder" flashmoe '!flashmoe._native' >&2
echo "$folder/flashmoe.html"
