"""Draws figures from results files, or makes docs/performance.md of those in bench/results: `flashmoe plot`.

plot.py [FILE...] [--output FOLDER] [--format svg,png]
plot.py --page | --check-page
Exit codes: 0 done, 1 the page is out of date, 2 bad input, 130 interrupted (Ctrl-C).
"""

import argparse
import os
import signal
import sys
from pathlib import Path

from figures import all_figures
from page import FIGURES, PAGE, page_text, what_is_stale
from results import (
    PROJECT,
    PUBLISHED,
    BadInput,
    baseline_files,
    bench_rows,
    drawn_files,
    read_file,
    relative,
    trace_summaries,
)


def parse_arguments():
    parser = argparse.ArgumentParser(prog="flashmoe plot", description="Figures from results files, as SVG and PNG.")
    parser.add_argument("files", nargs="*", type=Path, help="results files [those of bench/results]")
    parser.add_argument("--output", type=Path, help="folder for the pictures [figures]")
    parser.add_argument("--format", help="svg, png or both [svg,png]")
    parser.add_argument(
        "--page", action="store_true", help="make docs/performance.md and its figures from bench/results"
    )
    parser.add_argument("--check-page", action="store_true", help="say what of docs/performance.md is out of date")
    return parser.parse_args()


def figures_of(files):
    published = drawn_files(PUBLISHED)
    return all_figures(
        bench_rows(files),
        baseline_files([*published, *(f for f in files if f not in published)]),
        trace_summaries(files),
    )


# What a file of each schema must hold to be in a figure.
NEEDED = {
    "bench": "a line needs rows of one layer, uniform routing and as many tokens on every rank, at two counts of tokens, "
    "experts or ranks; bars need two routings of one batch; the thesis' figures its layer (hidden 1024, intermediate "
    "4096, top k 2) on GPUs",
    "baseline": "it stands beside rows of a bench file that are of the same layer and ranks, on GPUs",
    "trace": "a timeline with a late rank is a row of flashmoe plot --page alone",
}


def not_drawn(files, figures):
    """A sentence for every file of which no figure has anything."""
    drawn = {source for figure in figures for source in figure.sources}
    return [
        f"nothing of {path} is drawn: {NEEDED[read_file(path)['schema']]}"
        for path in files
        if relative(path) not in drawn
    ]


def draw_all(figures, folder, formats):
    try:
        folder.mkdir(parents=True, exist_ok=True)
        from draw import draw  # here, because matplotlib takes a second to load

        for figure in figures:
            draw(figure, folder, formats)
    except OSError as error:
        raise BadInput(
            f"output ({folder}) must be a folder that can be written to, got: {error.strerror}: give another"
        ) from error


def make_page(files):
    figures = figures_of(files)
    for stale in FIGURES.glob("*.svg"):
        stale.unlink()
    draw_all(figures, FIGURES, ["svg"])
    PAGE.write_text(page_text(files, figures), encoding="utf-8")


def run(arguments):
    results = drawn_files(PROJECT / "bench" / "results")
    if arguments.page or arguments.check_page:
        flag = "--page" if arguments.page else "--check-page"
        given = {
            "--check-page": arguments.page and arguments.check_page,
            "the files": arguments.files,
            "--output": arguments.output is not None,
            "--format": arguments.format is not None,
        }
        for name in (name for name, is_given in given.items() if is_given):
            raise BadInput(f"{flag} is about docs/performance.md, which is made of bench/results: leave {name} out")
        if arguments.page:
            make_page(results)
            return 0
        stale = what_is_stale(results, figures_of(results))
        for sentence in stale:
            print(f"{sentence}: run flashmoe plot --page", file=sys.stderr)
        return 1 if stale else 0
    formats = ["svg", "png"] if arguments.format is None else arguments.format.split(",")
    if any(one not in ("svg", "png") for one in formats):
        raise BadInput(f"format ({arguments.format}) must be svg, png or svg,png")
    files = arguments.files or results
    if not (bench_rows(files) or trace_summaries(files) or baseline_files(files)):
        raise BadInput(f"{', '.join(map(str, files))}: no row was measured: give a file with one")
    figures = figures_of(files)
    folder = arguments.output or Path("figures")
    draw_all(figures, folder, formats)
    for figure in figures:
        print(f"{folder / figure.name}: {figure.title}")
    for sentence in not_drawn(arguments.files, figures):
        print(f"flashmoe: info: {sentence}", file=sys.stderr)
    return 0


def end_interrupted(_signal, _frame):
    os.write(2, b"flashmoe: error: interrupted: figures may be missing or cut, the same command draws them all\n")
    os._exit(130)


def set_signals():
    """Ctrl-C ends with one line, unless ignored from the start, and a reader that has gone with none."""
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, end_interrupted)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def main():
    set_signals()
    try:
        return run(parse_arguments())
    except BadInput as error:
        print(f"flashmoe: error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"flashmoe: error: {error.filename} cannot be used ({error.strerror}): make room for it", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
