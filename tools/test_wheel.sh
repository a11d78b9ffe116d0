#!/bin/sh
# Installs a wheel into an environment of its own and runs it there, away from the checkout: tools/test_wheel.sh WHEEL
set -eu
wheel=$(realpath "$1")
project=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
numpy=$(grep '^numpy==' "$project/tools/requirements-python.txt")

case $wheel in
  *-py3-none-linux_"$(uname -m)".whl) ;;
  *) echo "$wheel must end in -py3-none-linux_$(uname -m).whl: one wheel serves every Python" >&2; exit 1 ;;
esac
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q --disable-pip-version-check "$wheel" "$numpy" >&2
cp "$project/examples/python/ranks.py" "$work"
cd "$work"
unset FLASHMOE_LIBRARY PYTHONPATH

library=$(echo venv/lib/python3*/site-packages/flashmoe/lib/libflashmoe.so)
if ldd "$library" | grep -E 'not found|/usr/.*(openblas|fmt|stdc\+\+)' >&2; then
  echo "libflashmoe.so of the wheel needs libraries that it does not bring: see above" >&2
  exit 1
fi
venv/bin/python ranks.py
venv/bin/python - <<'PYTHON'
import importlib.metadata, importlib.resources, flashmoe
assert flashmoe.__version__ == importlib.metadata.version("flashmoe"), flashmoe.__version__
files = importlib.resources.files("flashmoe")
for name in ("py.typed", "lib/LICENSE.openblas.txt"):
    assert files.joinpath(name).is_file(), name
assert str(files).startswith(__import__("sys").prefix), files
print(f"flashmoe {flashmoe.__version__} works from {files}")
PYTHON
