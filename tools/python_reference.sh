#!/bin/sh
# Writes the reference of the Python package, from its docstrings: tools/python_reference.sh FOLDER
# Needs .venv/python, .venv/torch (tools/bootstrap.sh) and the library in FLASHMOE_LIBRARY.
set -eu
folder=$1
cd "$(dirname "$0")/.."
site_packages=$(echo "$PWD"/.venv/torch/lib/python3*/site-packages)
FLASHMOE_LIBRARY=$(realpath "$FLASHMOE_LIBRARY") PYTHONPATH=$PWD/python:$site_packages PYTHONDONTWRITEBYTECODE=1 \
  .venv/python/bin/python - "$folder" >&2 <<'PYTHON'
import pathlib, sys, warnings
import flashmoe, pdoc
warnings.simplefilter("error")  # a name that cannot be documented
for name in flashmoe.__all__:
    getattr(flashmoe, name)  # what is imported when it is used
modules = ("flashmoe", "flashmoe.page", "flashmoe.integrations.transformers")
pdoc.render.configure(docformat="google")
pdoc.pdoc(*modules, output_directory=pathlib.Path(sys.argv[1]))
PYTHON
echo "$folder/flashmoe.html"
