"""docs/performance.md: what bench/results says, in tables, and the figures drawn from it. Standard library only."""

import json
import re

from layers import fits, with_layers
from results import (
    PROJECT,
    PUBLISHED,
    ROW_KEYS,
    baseline_files,
    bench_rows,
    bound_is_of_card,
    drawn_files,
    read_file,
    relative,
    short_card,
    trace_summaries,
)

PAGE = PROJECT / "docs" / "performance.md"
FIGURES = PROJECT / "docs" / "figures"

COLUMNS = (  # heading, key, format
    ("layer", "model", "{}"),
    ("ranks", "num_ranks", "{}"),
    ("tokens", "tokens_per_rank", "{}"),
    ("dtype", "dtype", "{}"),
    ("routing", "routing", "{}"),
    ("engine", "engine", "{}"),
    ("replay", "replay", "{}"),
    ("form", "wire_form", "{}"),
    ("us", "latency_us", "{:.1f}"),
    ("p95 us", "p95_us", "{:.1f}"),
    ("bound us", "bound_us", "{:.1f}"),
    ("of bound", "fraction_of_bound", "{:.1%}"),
    ("TFLOP/s", "tflops_per_gpu", "{:.3g}"),
    ("heap MiB", "heap_bytes", "{:.1f}"),
    ("sent MiB", "wire_bytes", "{:.1f}"),
    ("rel. L2", "rel_l2", "{:.2e}"),
)
WAITS = ("tokens", "ring", "task", "results", "own_rank")
MEBIBYTES = {"heap_bytes", "wire_bytes"}


def cell(row, key, form):
    value = row.get(key)
    if value is None:
        return ""
    if key in MEBIBYTES:
        value /= 2**20
    return form.format(json.dumps(value) if isinstance(value, list) else value)


def baseline_cell(us, row):
    """Another system's time and how many times ours that is."""
    return "" if us is None else f"{us:g} ({us / row['latency_us']:.2f}x)"


def times_elsewhere(row, baseline):
    """Of a system that was measured in another run: its time for the row's case on the row's card, or None."""
    if baseline["name"] in row.get("baselines", {}) or short_card(baseline["card"]) != short_card(row["card"]):
        return None
    same = (
        theirs for theirs in baseline["rows"] if all(theirs[key] == row[key] for key in ROW_KEYS) and fits(theirs, row)
    )
    return next((theirs["latency_us"] for theirs in same), None)


def table(rows, published):
    for row in rows:
        if not bound_is_of_card(row):
            row.pop("fraction_of_bound", None)  # of another card's
    used = [column for column in COLUMNS if any(row.get(column[1]) is not None for row in rows)]
    bound_cards = ", ".join(sorted({short_card(row["bound_card"]) for row in rows}))
    headings = [f"{heading} ({bound_cards})" if key == "bound_us" else heading for heading, key, _ in used]
    names = sorted({name for row in rows for name in row.get("baselines", {})})
    elsewhere = [one for one in published if any(times_elsewhere(row, one) is not None for row in rows)]
    headings += names + [f"{one['title']}, another run" for one in elsewhere]
    lines = [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
    ]
    for row in rows:
        cells = [cell(row, key, form) for _, key, form in used]
        cells += [baseline_cell(row.get("baselines", {}).get(name), row) for name in names]
        cells += [baseline_cell(times_elsewhere(row, one), row) for one in elsewhere]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def describe(content):
    gpus = content.get("gpus") or max((row.get("gpus") or 0 for row in content.get("rows", [])), default=0)
    parts = [
        f"{content['date']}" if content.get("date") else None,
        (f"{gpus}x " if gpus else "") + short_card(content.get("card")),
        f"driver {content['driver']}" if content.get("driver") else None,
        "commit " + re.sub(r"\b([0-9a-f]{12})[0-9a-f]{28}\b", r"\1", content["commit"]) if content.get("commit") else None,
        *(f"`{command}`" for command in content.get("commands", [content.get("command")]) if command),
    ]
    ranges = [conditions for conditions in content.get("clocks", {}).values()]
    ranges += [row["conditions"] for row in content.get("rows", []) if row.get("conditions")]
    for key, form in (("sm_clock_mhz", "SM clock {:g}-{:g} MHz"), ("temperature_c", "{:g}-{:g} C")):
        ends = [end for conditions in ranges if isinstance(conditions, dict) for end in conditions.get(key, [])]
        if ends:
            parts.append(form.format(min(ends), max(ends)))
    return ", ".join(part for part in parts if part)


def timelines(files):
    """A table of what traced calls spent their time on."""
    found = [trace for trace in trace_summaries(files) if "late" not in trace]
    if not found:
        return []
    lines = [
        "## Timelines",
        "",
        "Calls that recorded what every actor did (`flashmoe trace`): share of the call in which a processor is there, in",
        "a task, in an up or down product; of the time in which rows are moved, that in which tiles are computed too; and",
        "the time of all actors together that went into waiting, by cause.",
        "",
        "| file | layer | ranks | tokens | call us | there | in a task | in a product | overlap | "
        + " | ".join(f"{cause}, us" for cause in WAITS)
        + " |",
        "|" + "---|" * (9 + len(WAITS)),
    ]
    for trace in found:
        summary = trace["summary"]
        shares = (summary.get(key) for key in ("resident_share", "busy_share", "product_share", "overlap_efficiency"))
        cells = [
            f"`{trace['file']}`",
            trace["layer"],
            str(trace["problem"]["num_ranks"]),
            ", ".join(str(tokens) for tokens in sorted(set(trace["tokens_per_rank"]))),
            f"{summary['wall_us']:.1f}",
            *("" if share is None else f"{share:.1%}" for share in shares),
            *(f"{summary['wait_us'][cause]:.0f}" for cause in WAITS),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines + [""]


def late_ranks(files):
    """A table of what ranks did while one was late."""
    found = [trace for trace in trace_summaries(files) if "late" in trace]
    if not found:
        return []
    lines = [
        "## Late ranks",
        "",
        "Calls in which one rank was held back (`flashmoe trace --late-rank`): what each other rank did from its begin",
        "until the late one's first tokens had come, in share of its processors' time and in tasks begun; and of the",
        "blocks of rows that do not need the late rank, how many, at least, were not begun then.",
        "",
        "| file | layer | tokens | late, us | rank | first tokens, us | in a task | in a product | last tile, us "
        "| up tasks | down tasks | m-blocks | left |",
        "|" + "---|" * 13,
    ]
    for trace in found:
        late = trace["late"]
        for other in late["others"]:
            cells = [
                f"`{trace['file']}`",
                trace["layer"],
                ", ".join(str(tokens) for tokens in sorted(set(trace["tokens_per_rank"]))),
                f"{late['us']:g} (rank {late['rank']})",
                str(other["rank"]),
                f"{other['tokens_us']:.1f}",
                *(f"{other[key]:.1%}" for key in ("busy_share", "product_share")),
                f"{other['last_tile_us']:.1f}",
                *(str(other[key]) for key in ("up_tasks", "down_tasks", "m_blocks", "m_blocks_left")),
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return lines + [""]


def page_text(files, figures):
    """The whole page; `figures` are those that FIGURES holds."""
    lines = [
        "# Performance",
        "",
        "Generated by `flashmoe plot --page` from the files in [bench/results](../bench/results); do not edit it. Every number is",
        "of the file it stands under: card, date and commit are that file's. Bounds are the least time the card in the heading",
        "could take (`src/planner/bound.hpp`); sent is what crossed ranks, as the file counts it. Behind another system's",
        "microseconds stands how many times ours they are; those of another run are from [bench/published](../bench/published).",
        "",
    ]
    published = baseline_files(drawn_files(PUBLISHED))
    for path in files:
        content = read_file(path)
        rows = with_layers(bench_rows([path]))
        if not rows:
            continue
        lines += [f"## {relative(path)}", "", describe(content) + ".", ""]
        if content.get("what"):
            lines += [content["what"][0].upper() + content["what"][1:] + ".", ""]
        lines += table(rows, published) + [""]
    lines += timelines(files) + late_ranks(files) + ["## Figures", ""]
    for figure in figures:
        lines += [
            f"![{figure.title}](figures/{figure.name}.svg)",
            "",
            f"{figure.title}. From {', '.join(f'`{source}`' for source in figure.sources)}.",
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def what_is_stale(files, figures):
    """One sentence for each part of the page that is not what the files say; empty: all is up to date."""
    stale = []
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page_text(files, figures):
        stale.append(f"{relative(PAGE)} is not what the results files say")
    for figure in figures:
        path = FIGURES / f"{figure.name}.svg"
        if not path.exists() or f"digest {figure.digest}" not in path.read_text(encoding="utf-8"):
            stale.append(f"{relative(path)} does not show what the results files say")
    wanted = {f"{figure.name}.svg" for figure in figures}
    for path in sorted(FIGURES.glob("*.svg")):
        if path.name not in wanted:
            stale.append(f"{relative(path)} belongs to no figure of the page")
    return stale
