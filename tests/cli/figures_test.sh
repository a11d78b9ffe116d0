#!/bin/sh
# What `flashmoe plot` draws, without drawing: layers of one name stay apart, other systems stand beside theirs alone.
set -u
PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$FLASHMOE_SOURCE_DIR/tools/plot exec python3 - <<'PYTHON'
import sys

from figures import all_figures
from layers import with_layers
from page import times_elsewhere


def row(us, tokens, **changes):
    problem = {"hidden": 64, "intermediate": 48, "num_experts": 8, "top_k": 2, "gated": True, "activation": "silu"}
    problem |= {key: value for key, value in changes.items() if key in problem}
    top = {"model": "small", "tokens_per_rank": tokens, "num_ranks": 2, "dtype": "bf16", "routing": "uniform"}
    top |= {key: value for key, value in changes.items() if key not in problem}
    return {"problem": problem, "latency_us": us, "bound_us": us / 2, "bound_card": "H100", "card": "H100", "file": "f",
            "backend": "cuda", "baseline_cards": {}, "fraction_of_bound": 0.5, "heap_bytes": 8, "wire_bytes": 8, **top}


def lines(rows, name, baselines=()):
    figures = {figure.name: figure for figure in all_figures(rows, list(baselines), [])}
    return {series.label: series.points for series in figures[name].series}


def check(what, got, wanted):
    global failures
    failures += got != wanted
    print(f"ok: {what}" if got == wanted else f"FAILED: {what}: wanted {wanted}, got {got}")


failures = 0
tokens, name = "latency-tokens-small-e8-2-cuda", "flashmoe, 2xH100 bf16"
for key, other, text in (("hidden", 128, ("hidden 64", "hidden 128")), ("top_k", 4, ("top k 2", "top k 4")),
                         ("intermediate", 96, ("intermediate 48", "intermediate 96")),
                         ("gated", False, ("gated", "not gated")),
                         ("activation", "gelu", ("activation silu", "activation gelu"))):
    rows = [row(10, 1), row(20, 2), row(1, 1, **{key: other}), row(2, 2, **{key: other})]
    got = lines(rows, tokens)
    check(f"layers that differ in {key} are two lines",
          {label: points for label, points in got.items() if label.startswith("flashmoe")},
          {f"{name}, {text[0]}": [(1, 10), (2, 20)], f"{name}, {text[1]}": [(1, 1), (2, 2)]})
    check(f"and two bounds, {key}", got[f"lower bound, H100 bf16, {text[1]}"], [(1, 0.5), (2, 1.0)])
    check(f"and two shares of the bound, {key}", len(lines(rows, "fraction-of-bound")), 2)

rows = [row(10, 1), row(20, 2)]
check("one layer's label is plain", list(lines(rows, tokens))[0], name)
old = [{key: value for key, value in one.items() if key != "problem"} for one in rows]
check("rows that leave sizes open are of the only layer of their name", with_layers([*rows, *old])[2]["layer"],
      rows[0]["problem"])
two = with_layers([row(1, 1), row(1, 1, hidden=128), old[0]])
check("and of none where there are two", two[2]["layer"], {})

rows = [row(10 * ranks, 1, num_ranks=ranks, hidden=hidden) for ranks in (1, 2) for hidden in (64, 128)]
check("lines over ranks are apart", len(lines(rows, "latency-ranks-cuda")), 2)
rows = [row(experts, 1, num_experts=experts, top_k=k) for experts in (8, 16) for k in (1, 2)]
check("lines over experts are apart", len(lines(rows, "latency-experts-cuda")), 2)
rows = [row(10, 1, routing=routing, hidden=hidden) for routing in ("uniform", "zipf:1") for hidden in (64, 128)]
check("bars of routings are apart", len(lines(rows, "latency-routing-small-e8-2-1-cuda")), 2)


def baseline(**said):
    of_row = {"model": "small", "num_ranks": 2, "dtype": "bf16", "routing": "uniform", "tokens_per_rank": 1}
    return {"name": "other", "title": "Other", "card": "H100", "file": "b", "rows": [{**of_row, "latency_us": 5, **said}]}


for said, wanted in (({}, True), ({"problem": {"hidden": 64}}, True), ({"problem": {"hidden": 128}}, False),
                     ({"num_experts": 8}, True), ({"num_experts": 4}, False), ({"activation": "relu"}, False)):
    rows = [row(10, 1), row(20, 2)]
    label = "Other, 2xH100 bf16, another run"
    check(f"a system that says {said} of its layer is {'' if wanted else 'not '}drawn",
          label in lines(rows, tokens, [baseline(**said)]), wanted)
    check("and in the table", times_elsewhere(with_layers(rows)[0], baseline(**said)) is not None, wanted)
sys.exit(failures > 0)
PYTHON
