#!/usr/bin/env python3
"""Time of one MoE layer in plain PyTorch: sort, NCCL all-to-all, torch._grouped_mm, and back; one process a GPU.

What people write without a special library: eager, counts exchanged and read by the host, dropless. Routing is given
and not timed, as in flashmoe bench. What it times and prints: cases.py.
Usage: torch_nccl.py [FOLDER | NUM_GPUS]   (default: a table on all GPUs; exit code 4 without one)
"""

import os
import sys

import cases as baseline


class Layer:
    """The experts [rank * local, (rank + 1) * local) of a layer whose weights are drawn expert by expert."""

    def __init__(self, case, rank):
        self.case, self.rank, self.num_ranks = case, rank, case.num_ranks
        self.local = case.num_experts // case.num_ranks
        experts = [baseline.expert(case, e, torch) for e in range(rank * self.local, (rank + 1) * self.local)]
        up, down, up_bias, down_bias = (torch.stack(tensors) for tensors in zip(*experts))
        self.up, self.down = up, down  # [local][columns][hidden], [local][hidden][intermediate]
        self.up_bias = up_bias.to(torch.bfloat16)  # [local][columns]
        self.down_bias = down_bias.to(torch.bfloat16)  # [local][hidden]

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
        counts = torch.bincount(ids.flatten(), minlength=self.case.num_experts)
        arriving = self.exchange(counts, [self.local] * self.num_ranks, [self.local] * self.num_ranks)
        arriving = arriving.view(self.num_ranks, self.local)  # rows of each source for each local expert
        send = counts.view(self.num_ranks, self.local).sum(1).tolist()
        receive = arriving.sum(1).tolist()
        rows = self.exchange(x[order // top_k], send, receive)
        expert_of_row = torch.arange(self.local, device="cuda").repeat(self.num_ranks)
        expert_of_row = expert_of_row.repeat_interleave(arriving.flatten())
        by_expert = expert_of_row.argsort(stable=True)
        ends = arriving.sum(0).cumsum(0).to(torch.int32)
        sums = torch._grouped_mm(rows[by_expert], self.up.transpose(1, 2), offs=ends)
        if self.case.biases:
            expert_of_row = expert_of_row[by_expert]
            sums += self.up_bias[expert_of_row]
        results = torch._grouped_mm(
            baseline.activate(self.case, sums, torch), self.down.transpose(1, 2), offs=ends
        )
        if self.case.biases:
            results += self.down_bias[expert_of_row]
        back = torch.empty_like(results)
        back[by_expert] = results
        returned = self.exchange(back, receive, send)
        routes = torch.empty_like(returned)
        routes[order] = returned
        return (routes.view(*ids.shape, -1).float() * weights[..., None]).sum(1).to(torch.bfloat16)


def run(rank, num_ranks, cases):
    torch.cuda.set_device(rank)
    if num_ranks > 1:
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29511"))
        dist.init_process_group("nccl", rank=rank, world_size=num_ranks, device_id=torch.device("cuda", rank))
    for group in baseline.by_shape(cases):
        layer = Layer(group[0], rank)
        for case in group:
            inputs = case.inputs(rank, torch)
            measured = baseline.measure(case, inputs, lambda: layer.forward(*inputs), dist, torch)
            if rank == 0:
                baseline.say("torch_nccl", case, **measured)
        del layer
        torch.cuda.empty_cache()
    if num_ranks > 1:
        dist.destroy_process_group()


try:
    import torch
    import torch.distributed as dist
except ImportError:
    pass  # main() says so

if __name__ == "__main__":
    sys.exit(baseline.main("torch_nccl", (), run))
