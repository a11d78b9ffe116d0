"""Layers and batches of the GPU tests, and what the CPU backend makes of them in fp64."""

import torch

import flashmoe

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K = 256, 128, 8, 3
# Relative L2 against fp64; fp32 is computed as tf32.
TOLERANCES = {torch.float64: 1e-13, torch.float32: 1.5e-3, torch.float16: 8e-4, torch.bfloat16: 4.5e-3}


def weights(dtype=torch.bfloat16, seed=1, gated=True):
    generator = torch.Generator().manual_seed(seed)
    columns = INTERMEDIATE * (2 if gated else 1)
    w13 = torch.randn(EXPERTS, columns, HIDDEN, generator=generator) / HIDDEN**0.5
    w2 = torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=generator) / INTERMEDIATE**0.5
    return w13.to("cuda", dtype), w2.to("cuda", dtype)


def batch(tokens, dtype=torch.bfloat16, seed=1):
    """x, topk_weights, topk_ids"""
    generator = torch.Generator().manual_seed(1000 + seed)
    x = torch.randn(tokens, HIDDEN, generator=generator)
    ids = torch.rand(tokens, EXPERTS, generator=generator).argsort(1)[:, :TOP_K].int()
    topk_weights = torch.rand(tokens, TOP_K, generator=generator)
    return x.to("cuda", dtype), topk_weights.cuda(), ids.contiguous().cuda()


def expected(x, w13, w2, topk_weights, topk_ids, **options):
    """fused_moe in fp64 on the CPU."""
    options = {name: value.cpu() if isinstance(value, torch.Tensor) else value for name, value in options.items()}
    gated = w13.shape[1] > w2.shape[2]
    return flashmoe.fused_moe(*(tensor.cpu().double() for tensor in (x, w13, w2, topk_weights)), topk_ids.cpu(),
                              **{"gate_up_order": "gate_up" if gated else None, **options})


def assert_right(y, wanted):
    assert y.isfinite().all()
    difference = float((y.cpu().double() - wanted).norm() / wanted.norm()) if wanted.norm() > 0 else float(y.abs().max())
    assert difference <= TOLERANCES[y.dtype], difference
