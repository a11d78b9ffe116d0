"""Figures of the layers that we measured: latency, its share of the bound, others' beside ours."""

from figure import (
    FASTEST,
    Figure,
    Series,
    best_points,
    even,
    files_of,
    grouped,
    latest_points,
    num_experts,
    our_label,
    our_series,
    series_key,
    system_key,
)
from layers import fits, layer_key, telling_apart
from results import bound_is_of_card, short_card


def layer_slug(model, experts):
    """A layer in a file's name; the expert count where the file has it."""
    name = "".join(c if c.isalnum() else "-" for c in model.lower())
    return f"{name}-e{experts}" if experts else name


def counted_twice(rows):
    """Of rows that a figure over tokens shows, those of layers with two counts or more."""
    return [row for _, own in grouped(rows, layer_key) if len({r["tokens_per_rank"] for r in own}) > 1 for row in own]


def has_forms(rows):
    """Whether some point was measured more than once."""
    keys = [(series_key(row), layer_key(row), row["tokens_per_rank"]) for row in rows]
    return len(set(keys)) < len(keys)


def latency_over_tokens(rows, baselines):
    figures = []
    key = lambda row: (row["model"], num_experts(row) or 0, row["num_ranks"], row["backend"])
    for (model, experts, ranks, backend), every in grouped(even(rows), key):
        group = counted_twice(every)
        if not group:
            continue
        sources = files_of(group, bounds=backend == "cuda")
        apart = telling_apart(group)
        found = []
        for _, own in grouped(group, lambda row: (*series_key(row), layer_key(row))):
            points = best_points(own, lambda r: r["tokens_per_rank"], lambda r: r["latency_us"])
            found.append((our_label(own, apart(own[0])), own, points))
        series = our_series(found)
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


def latency_over(rows, axis, x_of, x_label, same):
    """Latency over experts or ranks: series of rows that are alike in `same` and differ in the axis."""
    figures = []
    for (backend,), of_backend in grouped([r for r in even(rows) if x_of(r)], lambda row: (row["backend"],)):
        found, sources = [], set()
        apart = telling_apart(of_backend, without=("num_experts",))
        for _, own in grouped(of_backend, lambda row: (*map(str, same(row)), *series_key(row))):
            points = best_points(own, x_of, lambda r: r["latency_us"])
            if len(points) < 2:
                continue
            row = own[0]
            extra = f", {row['model']}{apart(row)}, {row['tokens_per_rank']} tokens"
            found.append((our_label(own, extra), own, points))
            sources.add(row["file"])
        if found:
            where = "" if backend == "cuda" else ", CPU"
            figures.append(
                Figure(
                    f"latency-{axis}-{backend}",
                    f"Latency over {axis}{where}",
                    x_label,
                    "latency, us",
                    our_series(found),
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
        found = []
        for _, own in grouped(group, lambda row: (*series_key(row), layer_key(row))):
            points = best_points(own, lambda r: r["routing"], lambda r: r["latency_us"])
            found.append((our_label(own, apart(own[0])), own, points))
        figures.append(
            Figure(
                f"latency-routing-{layer_slug(model, experts)}-{ranks}-{tokens}-{backend}",
                f"{model}, {ranks} ranks, {tokens} tokens: latency by routing",
                "routing",
                "latency, us",
                our_series(found),
                files_of(group),
                log_x=False,
                log_y=False,
                kind="bars",
            )
        )
    return figures
