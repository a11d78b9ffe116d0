#!/usr/bin/env python3
"""Time of one MoE layer in vLLM's Triton kernel `fused_moe_kernel`, by CUDA graph; one GPU.

The peer of a layer on a single GPU. Needs triton and vllm 0.33.0, which is found and not imported: `pip install
vllm==0.33.0 --no-deps`, or of its source an empty vllm/__init__.py, fused_moe.py and configs/ on PYTHONPATH. The graph
holds both products by that kernel, and activation and the sum over a token's choices by kernels of this file, in place
of vLLM's compiled ones. What favours it: sorting routes into blocks of one expert, which vLLM does in every forward, is
done before and not timed; each product has the fastest of vLLM's own tile (tuned for this card where it has that, and
the default) and of a few more, where vLLM has one tile for both. What it times and prints: cases.py.
Usage: vllm_triton.py [FOLDER | 1]   (default: a table on all GPUs, of which it answers 1; exit code 4 without one)
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import sys
import tempfile
from pathlib import Path

import cases as baseline

HEADER = """import triton
import triton.language as tl
from types import SimpleNamespace as Namespace
envs, current_platform = Namespace(VLLM_BATCH_INVARIANT=False), Namespace(is_rocm=lambda: False)
"""
KEYS = ("BLOCK_SIZE_M", "BLOCK_SIZE_N", "BLOCK_SIZE_K", "GROUP_SIZE_M", "num_warps", "num_stages")
TILES = {  # by BLOCK_SIZE_M, the rest of KEYS: what vLLM's files for H100 and H200 have most often
    16: ((64, 128, 1, 4, 4), (128, 64, 1, 4, 4), (128, 128, 1, 8, 3), (256, 128, 1, 8, 2)),
    32: ((64, 128, 1, 4, 3), (128, 64, 1, 4, 3), (128, 128, 1, 4, 4), (128, 128, 1, 8, 3)),
    64: ((64, 64, 1, 4, 3), (128, 64, 1, 4, 3), (128, 64, 16, 4, 4), (128, 128, 1, 8, 4)),
    128: ((128, 64, 1, 8, 3), (256, 64, 1, 8, 4), (256, 64, 16, 8, 4), (256, 64, 64, 8, 4)),
}


def folder_of_vllm():
    spec = importlib.util.find_spec("vllm")
    if spec is None:
        raise NotImplementedError("it needs the Python package vllm, which is missing")
    return Path(spec.submodule_search_locations[0]) / "model_executor/layers/fused_moe"


@functools.cache
def cut_out():
    """A module of the kernels in vLLM's file and its rule for tiles, without what that file imports."""
    functions = [
        node
        for node in ast.parse((folder_of_vllm() / "fused_moe.py").read_text()).body
        if isinstance(node, ast.FunctionDef)
        and (node.name == "get_default_config" or "triton.jit" in map(ast.unparse, node.decorator_list))
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fused_moe_cut_out.py"  # triton reads a kernel's source from its file
        path.write_text("\n\n".join([HEADER, *map(ast.unparse, functions)]))
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


def tiles_of(case, card):
    """What vLLM would take on this card, then TILES for as many routes as an expert has."""
    tokens, experts, size = case.tokens[0], case.num_experts, case.intermediate
    card = "NVIDIA_H200" if "H200" in card.split() else card.replace(" ", "_")
    tiles = [cut_out().get_default_config(tokens, experts, size, case.hidden, case.top_k, dtype=None)]
    tuned = folder_of_vllm() / "configs" / f"E={experts},N={size},device_name={card}.json"
    if tuned.exists():
        by_tokens = {int(key): tile for key, tile in json.loads(tuned.read_text()).items() if key.isdigit()}
        tiles.append(by_tokens[min(by_tokens, key=lambda count: abs(count - tokens))])
    block = next((block for block in TILES if 1.5 * tokens * case.top_k / experts <= block), max(TILES))
    for size in (block, block // 2 if block > min(TILES) else 2 * block):
        tiles += [dict(zip(KEYS, (size, *rest))) for rest in TILES[size]]
    return list({name_of(tile): tile for tile in tiles}.values())


def name_of(tile):
    return "{}x{}x{} group {} warps {} stages {}".format(*(tile[key] for key in KEYS))


def align(ids, block, num_experts):
    """Routes by expert, each expert's padded to blocks with a route there is not, the expert of each block, and how
    many routes that is: vLLM's moe_align_block_size, and its way around it for few routes."""
    ids = ids.flatten()
    routes = ids.numel()
    if 4 * routes <= num_experts:
        return None, ids, torch.full((1,), routes * block, dtype=torch.int32, device=ids.device)
    counts = torch.bincount(ids, minlength=num_experts)
    blocks = (counts + block - 1) // block
    order = ids.argsort(stable=True)
    by_expert = ids[order]
    rank = torch.arange(routes, device=ids.device) - (counts.cumsum(0) - counts)[by_expert]  # within its expert
    padded = blocks.sum(dtype=torch.int32).view(1) * block
    routes_by_expert = torch.full((padded.item(),), routes, dtype=torch.int32, device=ids.device)
    first_block = blocks.cumsum(0) - blocks
    routes_by_expert[first_block[by_expert] * block + rank] = order.to(torch.int32)
    expert_of_block = torch.arange(num_experts, dtype=torch.int32, device=ids.device).repeat_interleave(blocks)
    return routes_by_expert, expert_of_block, padded


def multiply(a, b, bias, out, aligned, tile, top_k, weights=None):
    """out[route] = b[its expert] a[route // top_k] + bias, times the route's weight; launched as by vLLM."""
    routes_by_expert, expert_of_block, padded = aligned
    routes, block = out.shape[0], tile["BLOCK_SIZE_M"]
    most = min(routes * block, -(-(routes + b.shape[0] * (block - 1)) // block) * block)  # whatever the routing
    cut_out().fused_moe_kernel[most // block * -(-b.shape[1] // tile["BLOCK_SIZE_N"]),](
        a_ptr=a,
        b_ptr=b,
        c_ptr=out,
        b_bias_ptr=bias,
        a_scale_ptr=None,
        b_scale_ptr=None,
        topk_weights_ptr=weights,
        sorted_token_ids_ptr=routes_by_expert,
        expert_ids_ptr=expert_of_block,
        num_tokens_post_padded_ptr=padded,
        N=b.shape[1],
        K=b.shape[2],
        EM=most,
        num_valid_tokens=routes,
        stride_am=a.stride(0),
        stride_ak=1,
        stride_be=b.stride(0),
        stride_bk=1,
        stride_bn=b.stride(1),
        stride_cm=out.stride(0),
        stride_cn=1,
        **dict.fromkeys(("stride_asm", "stride_ask", "stride_bse", "stride_bsk", "stride_bsn"), 0),
        stride_bbe=0 if bias is None else bias.stride(0),
        stride_bbn=0 if bias is None else 1,
        group_n=0,
        group_k=0,
        naive_block_assignment=routes_by_expert is None,
        MUL_ROUTED_WEIGHT=weights is not None,
        top_k=top_k,
        compute_type=tl.bfloat16,
        **dict.fromkeys(("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "per_channel_quant"), False),
        HAS_BIAS=bias is not None,
        SWAP_AB=False,
        **{"SPLIT_K": 1, **tile},
    )


try:
    import torch
    import triton.language as tl
    from triton import OutOfResources, jit
except ImportError:  # main() says so

    def jit(kernel):
        return kernel


@jit
def activate_kernel(
    sums, middle, size, alpha, limit, GATED: tl.constexpr, CLAMPED: tl.constexpr, BLOCK: tl.constexpr
):
    """activate() of cases.py: middle [routes][size] of sums [routes][size, or gate's and up's]."""
    route = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    if GATED:
        gate = tl.load(sums + route * 2 * size + column, inside, 0).to(tl.float32)
        up = tl.load(sums + (route * 2 + 1) * size + column, inside, 0).to(tl.float32)
        if CLAMPED:
            gate = tl.minimum(gate, limit)
            up = tl.minimum(tl.maximum(up, -limit), limit) + 1
            gate = gate * tl.sigmoid(alpha * gate)
        else:
            gate = gate * tl.sigmoid(gate)
        value = gate * up
    else:
        value = tl.maximum(tl.load(sums + route * size + column, inside, 0).to(tl.float32), 0)
    tl.store(middle + route * size + column, value.to(tl.bfloat16), inside)


@jit
def sum_kernel(results, y, hidden, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """y [tokens][hidden] of results [tokens][TOP_K][hidden]."""
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for choice in tl.static_range(TOP_K):
        total += tl.load(results + (token * TOP_K + choice) * hidden + column, inside, 0).to(tl.float32)
    tl.store(y + token * hidden + column, total.to(tl.bfloat16), inside)


def captured(call):
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def fastest(tiles, product):
    """The tile with which product(tile) takes the least time."""
    took = {}
    for tile in tiles:
        try:
            replay = captured(lambda: product(tile))
        except OutOfResources:
            continue  # more shared memory than the card has
        us, _ = baseline.times_of(replay, 20, torch)
        took[sorted(us)[len(us) // 2]] = tile
    return took[min(took)]


class Layer:
    def __init__(self, case):
        experts = [baseline.expert(case, e, torch) for e in range(case.num_experts)]
        self.up, self.down, up_bias, down_bias = (torch.stack(tensors) for tensors in zip(*experts))
        self.up_bias = up_bias.to(torch.bfloat16) if case.biases else None  # [experts][columns]
        self.down_bias = down_bias.to(torch.bfloat16) if case.biases else None  # [experts][hidden]

    def time(self, case):
        x, ids, weights = inputs = case.inputs(0, torch)
        routes, block = ids.numel(), 1024
        sums, middle, results = (
            x.new_empty(routes, width) for width in (self.up.shape[1], case.intermediate, case.hidden)
        )
        y = torch.empty_like(x)
        aligned = functools.cache(lambda size: align(ids, size, case.num_experts))

        def up(tile):
            multiply(x, self.up, self.up_bias, sums, aligned(tile["BLOCK_SIZE_M"]), tile, case.top_k)

        def activate():
            clamped, grid = case.activation == "swiglu_clamped", (routes, -(-case.intermediate // block))
            constants = float(case.swiglu_alpha), float(case.swiglu_limit), case.gated, clamped, block
            activate_kernel[grid](sums, middle, case.intermediate, *constants)

        def down(tile):
            down_aligned = aligned(tile["BLOCK_SIZE_M"])
            multiply(middle, self.down, self.down_bias, results, down_aligned, tile, 1, weights)

        def forward():
            up(up_tile)
            activate()
            down(down_tile)
            sum_kernel[y.shape[0], -(-case.hidden // block)](results, y, case.hidden, case.top_k, block)

        tiles = tiles_of(case, torch.cuda.get_device_name())
        up_tile = fastest(tiles, up)
        activate()  # so that down's time is that of real rows
        down_tile = fastest(tiles, down)
        replay = captured(forward)

        def call():
            replay()
            return y

        measured = baseline.measure(case, inputs, call, None, torch)
        return dict(measured, up_tile=name_of(up_tile), down_tile=name_of(down_tile))


def run(rank, num_ranks, cases):
    torch.cuda.set_device(rank)
    for group in baseline.by_shape(cases) if rank == 0 else ():
        try:
            if num_ranks > 1:
                raise NotImplementedError(f"it is timed on one GPU, got {num_ranks} ranks")
            cut_out()  # before weights are drawn
            layer = Layer(group[0])
            for case in group:
                baseline.say("vllm_triton", case, **layer.time(case))
            del layer
        except NotImplementedError as error:
            for case in group:
                baseline.say("vllm_triton", case, error=f"vllm_triton cannot run this: {error}")
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(baseline.main("vllm_triton", ("triton",), run))
