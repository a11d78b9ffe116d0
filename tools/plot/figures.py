"""Every figure that results can fill. Standard library only; draw.py makes pictures of them."""

from figure import num_experts
from latency_figures import by_routing, fraction_of_bound, latency_over, latency_over_tokens
from layers import layer_key, with_layers
from thesis_figures import thesis_latency, thesis_memory, thesis_payload, thesis_scaling, thesis_utilisation


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
