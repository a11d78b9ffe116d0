#!/bin/sh
# The script of `flashmoe plot` ends with one line on Ctrl-C, and with none where its reader has gone.
set -u
PYTHONDONTWRITEBYTECODE=1 exec python3 - "$FLASHMOE_SOURCE_DIR/tools/plot/plot.py" <<'PYTHON'
import os
import signal
import subprocess
import sys
import tempfile

failures = 0


def check(what, got, wanted):
    global failures
    failures += got != wanted
    print(f"ok: {what}" if got == wanted else f"FAILED: {what}: wanted {wanted}, got {got}")


def started(words, **settings):
    """A shell ignores Ctrl-C for what runs aside, this test perhaps."""
    return subprocess.Popen([sys.executable, sys.argv[1], *words], stderr=subprocess.PIPE, text=True,
                            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler), **settings)


with tempfile.TemporaryDirectory() as folder:
    pipe = f"{folder}/input.json"
    os.mkfifo(pipe)
    waiting = started([pipe])
    with open(pipe, "w"):  # once the script has opened it, too: it is at work, and waits for what is never written
        waiting.send_signal(signal.SIGINT)
        said = waiting.communicate(timeout=60)[1]
check("Ctrl-C ends it with 130", waiting.returncode, 130)
check("and one line", (said.startswith("flashmoe: error: interrupted: "), said.count("\n")), (True, 1))

reader, writer = os.pipe()
os.close(reader)
printing = started(["--help"], stdout=writer)
check("without a reader it says nothing", printing.communicate(timeout=60)[1], "")
check("and ends as other programs do", printing.returncode, -signal.SIGPIPE)
sys.exit(failures != 0)
PYTHON
