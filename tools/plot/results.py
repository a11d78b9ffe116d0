"""Results files as rows that know where they come from. Standard library only."""

import csv
import json
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
PUBLISHED = PROJECT / "bench" / "published"
ROOFLINE_TABLE = PROJECT / "tests" / "fixtures" / "roofline_ep4_bf16.csv"
MEMORY_TABLE = PROJECT / "tests" / "fixtures" / "thesis_table_6_2_memory.csv"
DRAWN_SCHEMAS = ("bench", "trace", "baseline")
ROW_KEYS = ("model", "tokens_per_rank", "num_ranks", "dtype", "routing")  # of every measurement


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
    if schema == "baseline" and not isinstance(content.get("name"), str):
        raise BadInput(f"{path} must have a string \"name\", the system's: add it")
    rows = content.get("rows", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadInput(f"{path} must have an array of objects \"rows\": give another file")
    for row in rows:
        if not isinstance(row.get("latency_us", 0.0), (int, float)):
            raise BadInput(f"{path}: latency_us must be a number, got {row['latency_us']!r}: correct the file")
    return content


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
            if "latency_us" not in row:
                continue  # it says why
            missing = [key for key in ROW_KEYS if key not in row]
            if missing:
                raise BadInput(
                    f"{path}: every row must have {', '.join(ROW_KEYS)}, one lacks {', '.join(missing)}: add them"
                )
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
