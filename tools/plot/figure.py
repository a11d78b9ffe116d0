"""A figure: named series of points, and how rows become them."""

import hashlib
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from itertools import groupby
from pathlib import Path

from results import short_card


FASTEST = "of our measurements of a point, the fastest"


@dataclass
class Series:
    label: str
    points: list  # [(x, y)], ascending x
    role: str  # "ours", "baseline", "bound" or "published"


@dataclass
class Figure:
    name: str
    title: str
    x_label: str
    y_label: str
    series: list
    sources: list  # files the points come from, as documents name them
    log_x: bool = True
    log_y: bool = True
    kind: str = "lines"  # or "bars": the points' x are names, or "points"
    note: str = ""
    digest: str = field(default="", init=False)

    def __post_init__(self):
        content = {key: value for key, value in asdict(self).items() if key != "digest"}
        self.digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]


def files_of(rows, bounds=False):
    """The files that the rows come from and, where their bounds are shown, those of the bounds."""
    found = {row["file"] for row in rows}
    if bounds:
        found |= {row["bound_file"] for row in rows if "bound_file" in row}
    return sorted(found)


def series_key(row):
    return tuple(str(row.get(key, "")) for key in ("file", "backend", "card", "dtype", "replay", "engine"))


def system_key(row):
    """What stays the same across files and ways to launch: for figures that compare machines and layers."""
    return (short_card(row["card"]), row["dtype"], row.get("engine", ""))


def our_label(rows, extra="", ways=("engine", "replay")):
    """The series' card, number format and way to run."""
    row = rows[0]
    ranks = {r["num_ranks"] for r in rows}
    count = f"{ranks.pop()}x" if len(ranks) == 1 and row["backend"] == "cuda" else ""
    ways = [row[key] for key in ways if key in row and row["backend"] == "cuda"]
    way = f", {' '.join(ways)}" if ways else ""
    return f"flashmoe, {count}{short_card(row['card'])} {row['dtype']}{way}{extra}"


def our_series(found):
    """Series of (label, rows, points). Behind a label that several have: the commit where it tells them apart, else the
    file."""
    commits, files = (
        [(label, name_of(rows[0])) for label, rows, _ in found]
        for name_of in (lambda row: (row.get("commit") or "")[:7], lambda row: Path(row["file"]).stem)
    )
    labels = Counter(label for label, _, _ in found)
    alike = {label for (label, commit), count in Counter(commits).items() if count > 1 or not commit}
    series = []
    for (label, _, points), (_, commit), (_, file) in zip(found, commits, files):
        which = "" if labels[label] == 1 else f", {file if label in alike else commit}"
        series.append(Series(label + which, points, "ours"))
    return series


def best_points(rows, x_of, y_of):
    """One point for every x: the fastest row where several forms were measured."""
    best = {}
    for row in rows:
        x = x_of(row)
        if x not in best or row["latency_us"] < best[x]["latency_us"]:
            best[x] = row
    return [(x, y_of(row)) for x, row in sorted(best.items())]


def latest_points(rows, y_of):
    """One point for every token count: of the newest file that has it."""
    newest = sorted(rows, key=lambda row: (row.get("date") or "", row["file"]))
    return sorted({row["tokens_per_rank"]: y_of(row) for row in newest}.items())


def grouped(rows, key):
    return [(k, list(group)) for k, group in groupby(sorted(rows, key=key), key=key)]


def num_experts(row):
    return row.get("problem", {}).get("num_experts")


def even(rows):
    """Rows that a line over counts can hold: as many tokens on every rank, uniform routing."""
    return [row for row in rows if isinstance(row["tokens_per_rank"], int) and row["routing"] == "uniform"]
