#!/usr/bin/env python3
"""Time of one MoE layer in plain PyTorch: sort, NCCL all-to-all, torch._grouped_mm, and back; one process a GPU.

What people write without a special library: eager, counts exchanged and read by the host, dropless. Routing is given
and not timed, as in gpu_layer_timing. One JSON object a row on standard output; exit code 4 without a GPU.
Usage: torch_nccl.py [NUM_GPUS]   (default: all)
"""

import json
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM_UP, CALLS = 20, 100
MODELS = {
    "qwen3-30b-a3b": dict(hidden=2048, intermediate=768, experts=128, top_k=8, gated=True),
    "thesis": dict(hidden=1024, intermediate=4096, experts=32, top_k=2, gated=False),
}
TOKENS = (16, 128, 1024, 8192)


class Layer:
    """The experts [rank * local, (rank + 1) * local) of a layer whose weights are drawn expert by expert."""

    def __init__(self, model, rank, num_ranks):
        self.model, self.rank, self.num_ranks = model, rank, num_ranks
        self.local = model["experts"] // num_ranks
        experts = [self.expert(e) for e in range(rank * self.local, (rank + 1) * self.local)]
        self.up = torch.stack([up for up, _ in experts])  # [local][columns][hidden]
        self.down = torch.stack([down for _, down in experts])  # [local][hidden][intermediate]

    def expert(self, index):
        generator = torch.Generator("cuda").manual_seed(index)
        hidden, intermediate = self.model["hidden"], self.model["intermediate"]
        columns = 2 * intermediate if self.model["gated"] else intermediate

        def draw(rows, width):
            values = torch.randn(rows, width, device="cuda", generator=generator) * width**-0.5
            return values.to(torch.bfloat16)

        return draw(columns, hidden), draw(hidden, intermediate)

    def activate(self, rows):
        if not self.model["gated"]:
            return torch.relu(rows)
        gate, up = rows.chunk(2, dim=-1)
        return torch.nn.functional.silu(gate) * up

    def exchange(self, rows, send, receive):
        if self.num_ranks == 1:
            return rows
        arrived = rows.new_empty((sum(receive), *rows.shape[1:]))
        dist.all_to_all_single(arrived, rows, receive, send)
        return arrived

    def forward(self, x, ids, weights):
        """x [tokens][hidden] bf16, ids and weights [tokens][top_k] -> [tokens][hidden]."""
        top_k = ids.shape[1]
        order = ids.flatten().argsort(stable=True)
        counts = torch.bincount(ids.flatten(), minlength=self.model["experts"])
        arriving = self.exchange(counts, [self.local] * self.num_ranks, [self.local] * self.num_ranks)
        arriving = arriving.view(self.num_ranks, self.local)  # rows of each source for each local expert
        send = counts.view(self.num_ranks, self.local).sum(1).tolist()
        receive = arriving.sum(1).tolist()
        rows = self.exchange(x[order // top_k], send, receive)
        expert_of_row = torch.arange(self.local, device="cuda").repeat(self.num_ranks)
        by_expert = expert_of_row.repeat_interleave(arriving.flatten()).argsort(stable=True)
        ends = arriving.sum(0).cumsum(0).to(torch.int32)
        middle = self.activate(torch._grouped_mm(rows[by_expert], self.up.transpose(1, 2), offs=ends))
        results = torch._grouped_mm(middle, self.down.transpose(1, 2), offs=ends)
        back = torch.empty_like(results)
        back[by_expert] = results
        returned = self.exchange(back, receive, send)
        routes = torch.empty_like(returned)
        routes[order] = returned
        return (routes.view(*ids.shape, -1).float() * weights[..., None]).sum(1).to(torch.bfloat16)

    def sampled_error(self, x, ids, weights, y):
        """Relative L2 of the first tokens against the same sum in fp32."""
        wanted = []
        for token in range(min(4, x.shape[0])):
            total = torch.zeros(self.model["hidden"], device="cuda")
            for expert, weight in zip(ids[token].tolist(), weights[token].tolist()):
                up, down = self.expert(expert)
                total += weight * (self.activate(x[token].float() @ up.float().T) @ down.float().T)
            wanted.append(total)
        wanted = torch.stack(wanted)
        return ((y[: len(wanted)].float() - wanted).norm() / wanted.norm()).item()


def time_row(layer, tokens, num_ranks):
    generator = torch.Generator("cuda").manual_seed(1000 + layer.rank)
    model = layer.model
    x = torch.randn(tokens, model["hidden"], device="cuda", generator=generator).to(torch.bfloat16)
    scores = torch.rand(tokens, model["experts"], device="cuda", generator=generator)
    weights, ids = scores.topk(model["top_k"])
    events = [torch.cuda.Event(enable_timing=True) for _ in range(CALLS + 1)]
    for _ in range(WARM_UP):
        y = layer.forward(x, ids, weights)
    events[0].record()
    for event in events[1:]:
        y = layer.forward(x, ids, weights)
        event.record()
    torch.cuda.synchronize()
    us = torch.tensor([1e3 * a.elapsed_time(b) for a, b in zip(events, events[1:])], device="cuda")
    if num_ranks > 1:
        dist.all_reduce(us, dist.ReduceOp.MAX)
    us = us.sort().values
    return dict(latency_us=round(us[CALLS // 2].item(), 1), p95_us=round(us[CALLS * 95 // 100].item(), 1),
                rel_l2=float(f"{layer.sampled_error(x, ids, weights, y):.3g}"))


def run(rank, num_ranks):
    torch.cuda.set_device(rank)
    if num_ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29511"))
        dist.init_process_group("nccl", rank=rank, world_size=num_ranks, device_id=torch.device("cuda", rank))
    for name, model in MODELS.items():
        layer = Layer(model, rank, num_ranks)
        for tokens in TOKENS:
            row = time_row(layer, tokens, num_ranks)
            if rank == 0:
                shape = dict(baseline="torch_nccl", model=name, tokens_per_rank=tokens, num_ranks=num_ranks)
                print(json.dumps({**shape, **row}), flush=True)
    if num_ranks > 1:
        dist.destroy_process_group()


def main():
    num_gpus = torch.cuda.device_count()
    if num_gpus == 0:
        print("torch_nccl.py needs a GPU, this machine has none", file=sys.stderr)
        return 4
    num_ranks = int(sys.argv[1]) if len(sys.argv) > 1 else num_gpus
    mp.spawn(run, args=(num_ranks,), nprocs=num_ranks)
    return 0


if __name__ == "__main__":
    sys.exit(main())
