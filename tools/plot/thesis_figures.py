"""The thesis' figures, their points as printed, ours beside them."""

from figure import (
    FASTEST,
    Figure,
    Series,
    best_points,
    even,
    files_of,
    grouped,
    num_experts,
    our_label,
    series_key,
    system_key,
)
from layers import layer_key, telling_apart
from results import MEMORY_TABLE, PUBLISHED, read_csv, relative, short_card


def sizes(row):
    return tuple(row["layer"].get(key) for key in ("hidden", "intermediate", "top_k"))


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
