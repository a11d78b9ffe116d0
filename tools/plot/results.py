"""Results files as rows that know where they come from. Standard library only."""

import csv
import json
import math
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PUBLISHED = PROJECT / "bench" / "published"
ROOFLINE_TABLE = PROJECT / "tests" / "fixtures" / "roofline_ep4_bf16.csv"
MEMORY_TABLE = PROJECT / "tests" / "fixtures" / "thesis_table_6_2_memory.csv"
DRAWN_SCHEMAS = ("bench", "trace", "baseline")
ROW_KEYS = ("model", "tokens_per_rank", "num_ranks", "dtype", "routing")  # of every measurement
SIZES = ("num_ranks", "hidden", "intermediate", "num_experts", "top_k")  # of a layer, counts


class BadInput(Exception):
    """One sentence: wanted, got, what to do."""


def relative(path):
    """A path as documents name it: from the project's root where it lies under it."""
    path = Path(path).resolve()
    return str(path.relative_to(PROJECT)) if path.is_relative_to(PROJECT) else path.name


def read_json(path):
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read as JSON ({error}): give results files") from error
    if not isinstance(content, dict):
        raise BadInput(f"{path} must be a JSON object with a schema, got {type(content).__name__}: give results files")
    return content


def read_file(path):
    """The object of one results file, its schema one of DRAWN_SCHEMAS."""
    content = read_json(path)
    schema = content.get("schema")
    if schema not in DRAWN_SCHEMAS:
        raise BadInput(f"{path} must have a schema of {', '.join(DRAWN_SCHEMAS)}, got {schema!r}: give another file")
    for key in ("name", "card") if schema == "baseline" else ("card",):
        if not isinstance(content.get(key), str):
            raise BadInput(f"{path} must have a string \"{key}\", got {content.get(key)!r}: add it")
    check_fields(content, HEADER_FIELDS, f"{path}")
    if schema == "trace":
        check_fields(content, TRACE_FIELDS, f"{path}")
        check_fields(content["summary"], SUMMARY_FIELDS, f'{path}: "summary"')
        if "late" in content:
            check_fields(content["late"], LATE_FIELDS, f'{path}: "late"')
            for index, other in enumerate(content["late"]["others"]):
                check_fields(other, MEANWHILE_FIELDS, f'{path}: "late": other {index}')
        return content
    rows = content.get("rows")
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} must have an array of objects \"rows\", one at least: give another file")
    cards = content.get("baseline_cards", {})
    if not named(cards, lambda card: isinstance(card, str)):
        raise BadInput(f'{path}: "baseline_cards" must be an object of names and cards, got {cards!r}: correct it')
    for index, row in enumerate(rows):
        if schema == "bench" and "error" in row:
            continue  # it says why there is nothing to draw
        check_fields(row, ROW_FIELDS, f"{path}: row {index}")
    return content


def named(value, right):
    return isinstance(value, dict) and all(right(one) for one in value.values())


def count(low):
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= low


def number(low=0.0, above=False):
    """Finite, `low` or more; `above`: more."""
    return lambda value: (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (value > low if above else value >= low)
    )


def text(value):
    return isinstance(value, str)


def counts(value):
    return count(0)(value) or (isinstance(value, list) and bool(value) and all(count(0)(one) for one in value))


def sizes(value):
    """Numbers and names of a layer, those of SIZES counts."""
    return named(value, lambda one: isinstance(one, (bool, int, float, str))) and all(
        count(1)(value[key]) for key in SIZES if key in value
    )


# Field: what it must be, in words and as a function, and whether it must be there.
HEADER_FIELDS = {key: ("a string", text, False) for key in ("date", "commit", "backend", "bound_card", "title")}
ROW_FIELDS = {
    "model": ("a string", text, True),
    "tokens_per_rank": ("a whole number, or one a rank", counts, True),
    "num_ranks": ("a whole number above 0", count(1), True),
    "dtype": ("a string", text, True),
    "routing": ("a string", text, True),
    "latency_us": ("a number above 0", number(0, above=True), True),
    "problem": (f"an object of numbers and names, {', '.join(SIZES)} whole numbers above 0", sizes, False),
    "engine": ("a string", text, False),
    "replay": ("a string", text, False),
    "backend": ("a string", text, False),
    "p95_us": ("a number above 0", number(0, above=True), False),
    "bound_us": ("a number, 0 or more", number(), False),
    "fraction_of_bound": ("a number, 0 or more", number(), False),
    "heap_bytes": ("a number, 0 or more", number(), False),
    "wire_bytes": ("a number, 0 or more", number(), False),
    "tflops_per_gpu": ("a number, 0 or more", number(), False),
    "baselines": ("an object of names and numbers above 0", lambda v: named(v, number(0, above=True)), False),
}
TRACE_FIELDS = {
    "layer": ("a string", text, True),
    "problem": (
        "an object with a whole number num_ranks",
        lambda value: sizes(value) and count(1)(value.get("num_ranks")),
        True,
    ),
    "tokens_per_rank": ("whole numbers", lambda value: isinstance(value, list) and counts(value), True),
    "summary": ("an object", lambda value: isinstance(value, dict), True),
    "late": ("an object", lambda value: isinstance(value, dict), False),
}
SUMMARY_FIELDS = {
    "wall_us": ("a number, 0 or more", number(), True),
    "resident_share": ("a number, 0 or more", number(), True),
    "busy_share": ("a number, 0 or more", number(), True),
    "wait_us": ("an object of causes and numbers", lambda value: named(value, number()), True),
}
LATE_FIELDS = {
    "rank": ("a whole number", count(0), True),
    "us": ("a number above 0", number(above=True), True),
    "others": (
        "an array of objects",
        lambda value: isinstance(value, list) and all(isinstance(other, dict) for other in value),
        True,
    ),
}
MEANWHILE_FIELDS = {
    "rank": ("a whole number", count(0), True),
    **{
        key: ("a number, 0 or more", number(), True)
        for key in ("tokens_us", "busy_share", "product_share", "last_tile_us")
    },
    **{key: ("a whole number", count(0), True) for key in ("up_tasks", "down_tasks", "m_blocks", "m_blocks_left")},
}


def check_fields(found, fields, where):
    for key, (wanted, right, needed) in fields.items():
        if key in found and right(found[key]) or key not in found and not needed:
            continue
        got = repr(found[key]) if key in found else "none"
        raise BadInput(f"{where}: {key} must be {wanted}, got {got}: correct the file")


def drawn_files(folder):
    """The results files of a folder that figures are made of; others lie beside them."""
    return [path for path in sorted(folder.glob("*.json")) if read_json(path).get("schema") in DRAWN_SCHEMAS]


def bench_rows(files):
    """Rows of all files of schema "bench" that were measured, each with its file, card, backend, date and commit."""
    rows = []
    for path in files:
        content = read_file(path)
        if content["schema"] != "bench":
            continue
        for row in content.get("rows", []):
            if "error" in row:
                continue  # it says why it was not measured
            shared = {key: content.get(key) for key in ("card", "date", "commit")}
            shared["backend"] = content.get("backend", row.get("backend", "cuda"))
            shared["baseline_cards"] = content.get("baseline_cards", {})
            shared["bound_card"] = content.get("bound_card", "H100")
            whole = {**shared, **row, "file": relative(path)}
            if "engine" in row:  # the backend is said already
                whole["engine"] = row["engine"].removeprefix("cuda-")
            rows.append(with_bound(whole))
    return rows


def with_bound(row):
    """The row beside the lower bound of balanced routing on 4 H100s, where it names none and the table has its case."""
    if "bound_us" in row or (row["num_ranks"], row["dtype"], row["routing"]) != (4, "bf16", "uniform"):
        return row
    for entry in read_csv(ROOFLINE_TABLE):
        if entry["shape"].lower() == row["model"] and int(entry["tokens_per_gpu"]) == row["tokens_per_rank"]:
            bound_us = float(entry["bound"])
            fraction = bound_us / row["latency_us"]
            return {**row, "bound_us": bound_us, "fraction_of_bound": fraction, "bound_file": relative(ROOFLINE_TABLE)}
    return row


def trace_summaries(files):
    """Summaries of all files of schema "trace", each with its file and card."""
    found = []
    for path in files:
        content = read_file(path)
        if content["schema"] == "trace":
            found.append({**content, "file": relative(path)})
    return found


def baseline_files(files):
    """Measurements of other systems: {"name", "title", "card", "rows", "file"} each."""
    found = []
    for path in files:
        content = read_file(path)
        if content["schema"] == "baseline":
            found.append({"title": content["name"], **content, "file": relative(path)})
    return found


def read_csv(path):
    """Rows of a CSV file whose first lines may be comments, as dictionaries."""
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return list(csv.DictReader(lines))


def bound_is_of_card(row):
    """Whether the row was measured on the card that its bound is of."""
    return short_card(row["bound_card"]) == short_card(row["card"])


def short_card(card):
    """H100 for NVIDIA H100 80GB HBM3; others as they are, without what every name has."""
    if not card:
        return "unknown card"
    for name in ("H100", "H200", "A100", "B200"):
        if name in card:
            return name
    return card.replace("(R)", "").replace("(TM)", "").replace(" CPU", "").split("@")[0].strip()
