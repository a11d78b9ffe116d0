"""What the figures show: from rows to named series of points. Standard library only; draw.py makes pictures of them."""

import hashlib
import json
from dataclasses import asdict, dataclass, field
from itertools import groupby

from layers import fits, layer_key, telling_apart, with_layers
from results import MEMORY_TABLE, PUBLISHED, bound_is_of_card, read_csv, relative, short_card


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


def sizes(row):
    return tuple(row["layer"].get(key) for key in ("hidden", "intermediate", "top_k"))


def num_experts(row):
    return row.get("problem", {}).get("num_experts")


def layer_slug(model, experts):
    """A layer in a file's name; the expert count where the file has it."""
    name = "".join(c if c.isalnum() else "-" for c in model.lower())
    return f"{name}-e{experts}" if experts else name


def even(rows):
    """Rows that a line over counts can hold: as many tokens on every rank, uniform routing."""
    return [row for row in rows if isinstance(row["tokens_per_rank"], int) and row["routing"] == "uniform"]


def counted_twice(rows):
    """Of rows that a figure over tokens shows, those of layers with two counts or more."""
    return [row for _, own in grouped(rows, layer_key) if len({r["tokens_per_rank"] for r in own}) > 1 for row in own]


def latency_over_tokens(rows, baselines):
    figures = []
    key = lambda row: (row["model"], num_experts(row) or 0, row["num_ranks"], row["backend"])
    for (model, experts, ranks, backend), every in grouped(even(rows), key):
        group = counted_twice(every)
        if not group:
            continue
        series, sources = [], files_of(group, bounds=backend == "cuda")
        apart = telling_apart(group)
        for _, own in grouped(group, lambda row: (*series_key(row), layer_key(row))):
            points = best_points(own, lambda r: r["tokens_per_rank"], lambda r: r["latency_us"])
            series.append(Series(our_label(own, apart(own[0])), points, "ours"))
        bounded = [row for row in group if row.get("bound_us", 0) > 0 and backend == "cuda"]
        where = lambda row: (short_card(row["bound_card"]), row["dtype"], layer_key(row))
        for (card, dtype, _), own in grouped(bounded, where):
            points = latest_points(own, lambda r: r["bound_us"])
            series.append(Series(f"lower bound, {card} {dtype}{apart(own[0])}", points, "bound"))
        for name in sorted({name for row in group for name in row.get("baselines", {})}):
            theirs = [row for row in group if row.get("baselines", {}).get(name) is not None]
            where = lambda row: (
                short_card(row["baseline_cards"].get(name) or row["card"]),
                row["dtype"],
                layer_key(row),
            )
            for (card, dtype, _), rows_there in grouped(theirs, where):
                points = latest_points(rows_there, lambda r: r["baselines"][name])
                series.append(Series(f"{name}, {ranks}x{card} {dtype}{apart(rows_there[0])}", points, "baseline"))
        for baseline in baselines if backend == "cuda" else []:
            own = {b for row in group for b in row.get("baselines", {})}
            theirs = [
                row
                for row in baseline["rows"]
                if (row["model"], row["num_ranks"], row["routing"]) == (model, ranks, "uniform")
                and any(fits(row, ours) for ours in group)
            ]
            if not theirs or baseline["name"] in own:
                continue
            for (dtype,), of_dtype in grouped(theirs, lambda row: (row["dtype"],)):
                points = sorted((row["tokens_per_rank"], row["latency_us"]) for row in of_dtype)
                where = f"{ranks}x{short_card(baseline['card'])} {dtype}"
                series.append(Series(f"{baseline['title']}, {where}, another run", points, "baseline"))
            sources.append(baseline["file"])
        where = ("GPU" if ranks == 1 else "GPUs") if backend == "cuda" else "ranks on the CPU"
        count = f", {experts} experts" if experts else ""
        figures.append(
            Figure(
                f"latency-tokens-{layer_slug(model, experts)}-{ranks}-{backend}",
                f"{model}{count}, {ranks} {where}: latency over tokens",
                "tokens of a rank",
                "latency, us",
                series,
                sources,
                note="the fastest of the wire forms measured" if has_forms(group) else "",
            )
        )
    return figures


def has_forms(rows):
    """Whether some point was measured more than once."""
    keys = [(series_key(row), layer_key(row), row["tokens_per_rank"]) for row in rows]
    return len(set(keys)) < len(keys)


def latency_over(rows, axis, x_of, x_label, same):
    """Latency over experts or ranks: series of rows that are alike in `same` and differ in the axis."""
    figures = []
    for (backend,), of_backend in grouped([r for r in even(rows) if x_of(r)], lambda row: (row["backend"],)):
        series, sources = [], set()
        apart = telling_apart(of_backend, without=("num_experts",))
        for _, own in grouped(of_backend, lambda row: (*map(str, same(row)), *series_key(row))):
            points = best_points(own, x_of, lambda r: r["latency_us"])
            if len(points) < 2:
                continue
            row = own[0]
            extra = f", {row['model']}{apart(row)}, {row['tokens_per_rank']} tokens"
            series.append(Series(our_label(own, extra), points, "ours"))
            sources.add(row["file"])
        if series:
            where = "" if backend == "cuda" else ", CPU"
            figures.append(
                Figure(
                    f"latency-{axis}-{backend}",
                    f"Latency over {axis}{where}",
                    x_label,
                    "latency, us",
                    series,
                    sorted(sources),
                )
            )
    return figures


def fraction_of_bound(rows):
    own = [
        row for row in even(rows) if "fraction_of_bound" in row and row["backend"] == "cuda" and bound_is_of_card(row)
    ]
    series = []
    apart = telling_apart(own)
    for _, group in grouped(own, lambda row: (row["model"], row["num_ranks"], *system_key(row), layer_key(row))):
        points = best_points(group, lambda r: r["tokens_per_rank"], lambda r: 100 * r["fraction_of_bound"])
        if len(points) > 1:
            layer = f", {group[0]['model']}{apart(group[0])}"
            series.append(Series(our_label(group, layer, ways=("engine",)), points, "ours"))
    if not series:
        return []
    return [
        Figure(
            "fraction-of-bound",
            "Share of the lower bound: bound / latency",
            "tokens of a rank",
            "%",
            series,
            files_of(own, bounds=True),
            log_y=False,
            note=FASTEST,
        )
    ]


def by_routing(rows):
    figures = []
    key = lambda row: (row["model"], num_experts(row) or 0, row["num_ranks"], row["tokens_per_rank"], row["backend"])
    for (model, experts, ranks, tokens, backend), every in grouped(
        [r for r in rows if isinstance(r["tokens_per_rank"], int)], key
    ):
        group = [row for _, own in grouped(every, layer_key) if len({r["routing"] for r in own}) > 1 for row in own]
        if not group:
            continue
        apart = telling_apart(group)
        series = []
        for _, own in grouped(group, lambda row: (*series_key(row), layer_key(row))):
            points = best_points(own, lambda r: r["routing"], lambda r: r["latency_us"])
            series.append(Series(our_label(own, apart(own[0])), points, "ours"))
        figures.append(
            Figure(
                f"latency-routing-{layer_slug(model, experts)}-{ranks}-{tokens}-{backend}",
                f"{model}, {ranks} ranks, {tokens} tokens: latency by routing",
                "routing",
                "latency, us",
                series,
                files_of(group),
                log_x=False,
                log_y=False,
                kind="bars",
            )
        )
    return figures


def is_thesis(row):
    return sizes(row) == (1024, 4096, 2) if row["layer"] else row["model"] == "thesis"


def thesis_apart(rows, without=("num_experts",)):
    """Of layers of the thesis' sizes, under whatever names: what tells them apart."""
    text = telling_apart([{**row, "model": "thesis"} for row in rows], without)
    return lambda row: text({**row, "model": "thesis"})


def thesis_latency(rows):
    """Figures 6.1 and 6.2 of the thesis, their points as printed, ours beside them."""
    path = PUBLISHED / "thesis_latency_ms.csv"
    table = read_csv(path)
    systems = [name for name in table[0] if name not in ("sweep", "value")]
    own = [row for row in even(rows) if is_thesis(row) and row["backend"] == "cuda"]
    experts_of = lambda row: num_experts(row) or 32
    sweeps = [
        (
            "tokens",
            "tokens(E=32)",
            "tokens of a GPU",
            "32 experts",
            lambda r: experts_of(r) == 32,
            lambda r: r["tokens_per_rank"],
            lambda r: r["num_ranks"],
        ),
        (
            "experts",
            "experts(T=8K)",
            "experts",
            "8192 tokens",
            lambda r: r["tokens_per_rank"] == 8192,
            experts_of,
            lambda r: r["num_ranks"],
        ),
        (
            "gpus",
            "gpus(E=32 T=8K)",
            "GPUs",
            "32 experts, 8192 tokens",
            lambda r: r["tokens_per_rank"] == 8192 and experts_of(r) == 32,
            lambda r: r["num_ranks"],
            lambda r: 0,
        ),
    ]
    figures = []
    for axis, sweep, x_label, fixed, keep, x_of, split in sweeps:
        published = [row for row in table if row["sweep"] == sweep]
        where = "8xH100" if axis != "gpus" else "H100"
        series = [
            Series(
                f"{name}, {where} {'fp32' if name == 'flashdmoe' else 'fp16'}, published",
                [(int(row["value"]), float(row[name])) for row in published],
                "published",
            )
            for name in systems
        ]
        chosen = [row for row in own if keep(row)]
        apart = thesis_apart(chosen)
        for _, group in grouped(chosen, lambda row: (split(row), *system_key(row), layer_key(row, ("num_experts",)))):
            points = best_points(group, x_of, lambda r: r["latency_us"] / 1e3)
            series.append(Series(our_label(group, apart(group[0]), ways=("engine",)), points, "ours"))
        figures.append(
            Figure(
                f"thesis-latency-{axis}",
                f"Thesis' layer (1024 / 4096, top 2), {fixed}: latency over {x_label}",
                x_label,
                "latency, ms",
                series,
                [relative(path), *files_of(chosen)],
                note=FASTEST,
            )
        )
    return figures


def thesis_scaling(rows):
    """Throughput and overlap efficiency over GPUs, worked out from the latencies of figure 6.2."""
    latency = next(figure for figure in thesis_latency(rows) if figure.name == "thesis-latency-gpus")
    throughput, efficiency = [], []
    for one in latency.series:
        throughput.append(Series(one.label, [(gpus, gpus * 8192 / ms / 1e3) for gpus, ms in one.points], one.role))
        at_two = dict(one.points).get(2)
        if at_two:
            efficiency.append(Series(one.label, [(gpus, at_two / ms) for gpus, ms in one.points], one.role))
    title = "Thesis' layer, 32 experts, 8192 tokens of a GPU"
    return [
        Figure(
            "thesis-throughput",
            f"{title}: throughput",
            "GPUs",
            "million tokens a second",
            throughput,
            latency.sources,
            log_y=False,
        ),
        Figure(
            "thesis-overlap-efficiency",
            f"{title}: overlap efficiency",
            "GPUs",
            "latency on 2 GPUs / latency",
            efficiency,
            latency.sources,
            log_y=False,
            note="1: as fast as on 2 GPUs, although every GPU brings as many tokens",
        ),
    ]


def thesis_memory(rows):
    table = read_csv(MEMORY_TABLE)
    series = [
        Series(
            f"size of L + bookkeeping, {experts} experts, fp32, published",
            [(int(row["tokens"]), float(row["total_mb"])) for row in group],
            "published",
        )
        for experts, group in grouped(table, lambda row: int(row["experts"]))
    ]
    own = [row for row in even(rows) if is_thesis(row) and "heap_bytes" in row and row["backend"] == "cuda"]
    apart = thesis_apart(own)
    key = lambda row: (num_experts(row) or 32, row["num_ranks"], *series_key(row), layer_key(row))
    for _, group in grouped(own, key):
        points = best_points(group, lambda r: r["tokens_per_rank"], lambda r: r["heap_bytes"] / 2**20)
        extra = f", heap, {num_experts(group[0]) or 32} experts{apart(group[0])}"
        series.append(Series(our_label(group, extra), points, "ours"))
    return [
        Figure(
            "thesis-memory",
            "Thesis' layer: symmetric memory of a GPU",
            "tokens",
            "MiB",
            series,
            [relative(MEMORY_TABLE), *files_of(own)],
        )
    ]


def thesis_payload(rows):
    own = [row for row in even(rows) if is_thesis(row) and row.get("wire_bytes") and row["backend"] == "cuda"]
    series = []
    apart = thesis_apart(own, without=())
    for _, group in grouped(own, lambda row: (row["num_ranks"], *series_key(row), layer_key(row))):
        fastest = {}
        for row in sorted(group, key=lambda r: -r["latency_us"]):
            fastest[row["tokens_per_rank"]] = (row["latency_us"] / 1e3, 8 * row["wire_bytes"])
        series.append(Series(our_label(group, apart(group[0])), sorted(fastest.values()), "ours"))
    if not series:
        return []
    note = "a point for every token count measured; the thesis prints no numbers for its figure 6.3b"
    title = "Thesis' layer: bits over NVLink and latency"
    return [Figure("thesis-payload", title, "latency, ms", "bits", series, files_of(own), kind="points", note=note)]


def thesis_utilisation(traces):
    path = PUBLISHED / "thesis_sm_utilisation.csv"
    series = [
        Series("2xH100, published", [(row["system"], float(row["percent"])) for row in read_csv(path)], "published")
    ]
    traces = [trace for trace in traces if "late" not in trace]  # a rank held back says nothing of a layer's own time
    for trace in traces:
        summary = trace["summary"]
        series.append(
            Series(
                f"flashmoe, {trace['problem']['num_ranks']}x{short_card(trace['card'])}, {trace['layer']}, "
                f"{max(trace['tokens_per_rank'])} tokens",
                [("resident", 100 * summary["resident_share"]), ("busy", 100 * summary["busy_share"])],
                "ours",
            )
        )
    return [
        Figure(
            "thesis-sm-utilisation",
            "SM utilisation",
            "",
            "%",
            series,
            [relative(path), *(t["file"] for t in traces)],
            log_x=False,
            log_y=False,
            kind="bars",
            note="resident: a processor is there, as the thesis defines it; busy: it is in a task",
        )
    ]


def all_figures(measured, baselines, traces):
    """Every figure that the rows can fill, the thesis' last."""
    rows = with_layers(measured)
    return [
        *latency_over_tokens(rows, baselines),
        *latency_over(
            rows,
            "experts",
            num_experts,
            "experts",
            lambda r: (r["model"], layer_key(r, without=("num_experts",)), r["tokens_per_rank"], r["num_ranks"]),
        ),
        *latency_over(
            rows,
            "ranks",
            lambda r: r["num_ranks"],
            "ranks",
            lambda r: (r["model"], layer_key(r), r["tokens_per_rank"]),
        ),
        *fraction_of_bound(rows),
        *by_routing(rows),
        *thesis_latency(rows),
        *thesis_scaling(rows),
        *thesis_memory(rows),
        *thesis_payload(rows),
        *thesis_utilisation(traces),
    ]
