"""A Mixture-of-Experts block as a torch module."""

import torch

import flashmoe

moe = flashmoe.MoE(hidden=256, intermediate=128, num_experts=16, top_k=4, renormalize=True)  # bf16, SwiGLU
x = torch.randn(2, 10, 256, dtype=torch.bfloat16)
with torch.no_grad():
    y = moe(x)
    weights, ids = moe.route(x.reshape(-1, 256))

    # The same as a function, with the routes and the packing of the weights spelled out.
    same = flashmoe.fused_moe(x.reshape(-1, 256), moe.w13, moe.w2, weights, ids, gate_up_order="gate_up")
assert torch.equal(y, same.reshape(x.shape))
print(f"{tuple(x.shape)} -> {tuple(y.shape)}, token 0 went to experts {sorted(ids[0].tolist())}")
