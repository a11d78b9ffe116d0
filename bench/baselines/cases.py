"""What a baseline is asked to time, and how it answers: shared by the scripts of this folder.

A script is called with a folder, as `flashmoe bench --baselines` does, or with a number of GPUs. The folder holds
cases.json, a list of
    {"model", "hidden", "intermediate", "num_experts", "top_k", "gated", "activation", "swiglu_alpha", "swiglu_limit",
     "biases", "dtype", "num_ranks", "tokens": [of each rank], "warm_up", "repeats", "budget_ms", "rest_ms",
     "files": "case0"}
and for each case of dtype bf16 <files>.x.npy (uint16, [tokens of all ranks][hidden]), <files>.ids.npy (int32) and
<files>.weights.npy (float32), both [tokens of all ranks][top_k]. Without a folder, a table of models and token counts
with drawn routing is timed. Experts' weights are the script's own: normal, with variance 1 / fan-in.

Answers are lines of JSON on standard output, one a case, in any order: the case's "files" (or model and tokens) with
"latency_us", "p95_us", "repeats" and "rel_l2", or with "error", one sentence.
"""

import json
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

MODELS = {
    "qwen3-30b-a3b": dict(hidden=2048, intermediate=768, num_experts=128, top_k=8, gated=True, activation="silu"),
    "thesis": dict(hidden=1024, intermediate=4096, num_experts=32, top_k=2, gated=False, activation="relu"),
}
TOKENS = (16, 128, 1024, 8192)
ACTIVATIONS = ((True, "silu"), (True, "swiglu_clamped"), (False, "relu"))  # gated or not, that activate() knows
FEWEST_REPEATS = 10


@dataclass
class Case:
    model: str
    hidden: int
    intermediate: int
    num_experts: int
    top_k: int
    gated: bool
    activation: str
    num_ranks: int
    tokens: list
    dtype: str = "bf16"
    biases: bool = False
    swiglu_alpha: float = 1.702
    swiglu_limit: float = 7.0
    warm_up: int = 20
    repeats: int = 100
    budget_ms: int = 0  # fewer repeats, FEWEST_REPEATS at least, where all would take longer; 0: never
    rest_ms: int = 0  # before the timed calls
    files: str = ""
    folder: Path = field(default=Path("."), repr=False)

    def shape(self):
        """What an expert depends on."""
        sizes = (self.hidden, self.intermediate, self.num_experts, self.top_k, self.num_ranks)
        return (*sizes, self.gated, self.activation, self.biases)

    def answer(self, **measured):
        if self.files:
            return dict(files=self.files, **measured)
        return dict(model=self.model, tokens_per_rank=self.tokens[0], num_ranks=self.num_ranks, **measured)

    def load(self, name):
        """A file's array, of all ranks."""
        import numpy

        return numpy.load(self.folder / f"{self.files}.{name}.npy", mmap_mode="r")

    def inputs(self, rank, torch):
        """x bf16, ids int32 and weights fp32 of a rank, on its GPU."""
        if self.files:
            first = sum(self.tokens[:rank])
            own = slice(first, first + self.tokens[rank])
            x, ids, weights = (
                torch.from_numpy(self.load(name)[own].copy()).cuda() for name in ("x", "ids", "weights")
            )
            return x.view(torch.bfloat16), ids, weights
        generator = torch.Generator("cuda").manual_seed(1000 + rank)
        tokens = self.tokens[rank]
        x = torch.randn(tokens, self.hidden, device="cuda", generator=generator).to(torch.bfloat16)
        scores = torch.rand(tokens, self.num_experts, device="cuda", generator=generator)
        weights, ids = scores.topk(self.top_k)
        return x, ids.to(torch.int32), weights


def expert(case, index, torch):
    """Up [columns][hidden] and down [hidden][intermediate] of a global expert, bf16, then their biases, fp32 [columns]
    and [hidden], zero in a layer without; the same on every rank."""
    generator = torch.Generator("cuda").manual_seed(index)

    def draw(rows, width):
        values = torch.randn(rows, width, device="cuda", generator=generator) * width**-0.5
        return values.to(torch.bfloat16)

    def draw_bias(size):
        return torch.rand(size, device="cuda", generator=generator) * (0.1 if case.biases else 0.0)

    columns = 2 * case.intermediate if case.gated else case.intermediate
    up, down = draw(columns, case.hidden), draw(case.hidden, case.intermediate)
    return up, down, draw_bias(columns), draw_bias(case.hidden)


def activate(case, rows, torch):
    if not case.gated:
        return torch.relu(rows)
    gate, up = rows.chunk(2, dim=-1)
    if case.activation == "silu":
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.clamp(max=case.swiglu_limit), up.clamp(-case.swiglu_limit, case.swiglu_limit)
    return gate * torch.sigmoid(case.swiglu_alpha * gate) * (up + 1)


def sampled_error(case, inputs, y, torch, count=4):
    """Relative L2 of a rank's first tokens against the same sum in fp32; None without a token."""
    x, ids, weights = inputs
    wanted = []
    for token in range(min(count, x.shape[0])):
        total = torch.zeros(case.hidden, device="cuda")
        for index, weight in zip(ids[token].tolist(), weights[token].tolist()):
            if index < 0:
                continue
            up, down, up_bias, down_bias = expert(case, index, torch)
            middle = activate(case, x[token].float() @ up.float().T + up_bias, torch)
            total += weight * (middle @ down.float().T + down_bias)
        wanted.append(total)
    if not wanted:
        return None
    wanted = torch.stack(wanted)
    return ((y[: len(wanted)].float() - wanted).norm() / wanted.norm()).item()


def times_of(call, count, torch):
    """Microseconds of each of `count` calls back to back, between events, and what the last one returned."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    result = None
    events[0].record()
    for event in events[1:]:
        result = call()
        event.record()
    torch.cuda.synchronize()
    return [1e3 * before.elapsed_time(after) for before, after in zip(events, events[1:])], result


def largest(values, dist, num_ranks, torch):
    """Each value as it is on the rank where it is largest."""
    values = torch.tensor(values, device="cuda")
    if num_ranks > 1:
        dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.tolist()


def measure(case, inputs, call, dist, torch):
    """What a script says of a case, by the rules of flashmoe bench: warm-up, a rest, timed calls back to back, as many
    as fit the budget. `call` returns y."""
    repeats = case.repeats
    if case.warm_up > 0:
        us, _ = times_of(call, case.warm_up, torch)
        last = largest(us[-1:], dist, case.num_ranks, torch)[0]
        if case.budget_ms > 0:
            repeats = min(repeats, max(FEWEST_REPEATS, int(1e3 * case.budget_ms / last)))
    time.sleep(case.rest_ms / 1e3)
    if case.num_ranks > 1:
        dist.barrier()
    torch.cuda.synchronize()
    us, y = times_of(call, repeats, torch)
    us = sorted(largest(us, dist, case.num_ranks, torch))
    error = sampled_error(case, inputs, y, torch)
    return dict(
        latency_us=round(us[len(us) // 2], 1),
        p95_us=round(us[len(us) * 95 // 100], 1),
        repeats=repeats,
        rel_l2=None if error is None else float(f"{error:.3g}"),
    )


def why_unfit(case):
    """One sentence where no baseline here can run a case, else None."""
    if case.dtype != "bf16":
        return f"times dtype bf16 alone, got {case.dtype}"
    if (case.gated, case.activation) not in ACTIVATIONS:
        return "times gated silu or clamped swiglu and plain relu layers alone"
    if case.files and case.load("ids").min(initial=0) < 0:
        return "times routings without masked choices alone"
    return None


def read_cases(folder):
    return [Case(**case, folder=folder) for case in json.loads((folder / "cases.json").read_text())]


def table(num_ranks):
    return [
        Case(model=name, num_ranks=num_ranks, tokens=[tokens] * num_ranks, **model)
        for name, model in MODELS.items()
        for tokens in TOKENS
    ]


def say(name, case, **measured):
    print(json.dumps(dict(baseline=name, **case.answer(**measured))), flush=True)


def main(name, packages, run):
    """Answers every case: `run(rank, num_ranks, cases)` in one process a GPU for those that can be run. Exit code 4
    without a GPU when called for a table."""
    try:
        import torch

        for package in packages:
            __import__(package)
        num_gpus = torch.cuda.device_count()
        missing = None if num_gpus > 0 else "needs a GPU, this machine has none"
    except ImportError as error:
        num_gpus = 0
        missing = f"needs a Python package that is missing ({error.name}): install it for the Python that runs this"
    argument = sys.argv[1] if len(sys.argv) > 1 else str(num_gpus)
    if argument.isdigit() and missing:
        print(f"{name} {missing}", file=sys.stderr)
        return 4
    cases = table(int(argument)) if argument.isdigit() else read_cases(Path(argument))
    fit = {}
    for case in cases:
        reason = missing or why_unfit(case)
        if not reason and case.num_ranks > num_gpus:
            reason = f"needs {case.num_ranks} GPUs, this machine has {num_gpus}"
        if reason:
            say(name, case, error=f"{name} {reason}")
        else:
            fit.setdefault(case.num_ranks, []).append(case)
    for num_ranks, some in fit.items():
        torch.multiprocessing.spawn(run, args=(num_ranks, some), nprocs=num_ranks)
    return 0


def by_shape(cases):
    """Groups of cases, in order, whose experts are the same."""
    groups = {}
    for case in cases:
        groups.setdefault(case.shape(), []).append(case)
    return groups.values()
