"""Router and layer through the page interface.

    python3 quickstart.py                                          # on the CPU; with --gpu on a GPU
    torchrun --nproc_per_node=2 quickstart.py --gpu --torch-init   # a process a GPU
    mpirun -n 2 python3 quickstart.py --gpu
"""

import argparse
from typing import Optional

import torch

import flashmoe


def run_moe(tokens_per_rank: int, token_dim: int, ffn_size: int, num_experts: int, k: int,
            device_id: Optional[int]) -> torch.Tensor:
    init_args = flashmoe.InitArgs(
        data_type=flashmoe.DataType.BF16, mlp_type=flashmoe.MLPType.GATED, act_type=flashmoe.ActivationType.SILU,
        tokens_per_rank=tokens_per_rank, token_dim=token_dim, ffn_size=ffn_size, num_experts=num_experts, top_k=k,
        device_id=device_id)
    device = "cpu" if device_id is None else f"cuda:{device_id}"
    flash_handle = flashmoe.initialize(init_args)
    router_handle = flashmoe.router.initialize(init_args)

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16, device=device).uniform_(-1.0, 1.0)

    tokens = random(tokens_per_rank, token_dim)
    expert_counts = torch.zeros(num_experts, dtype=torch.int32, device=device)
    flashmoe.router.forward(router_handle, flash_handle, flashmoe.router.RouterForwardArgs(
        tokens=tokens, weights=random(token_dim, num_experts), expert_counts=expert_counts))

    experts = init_args.num_local_experts
    args = flashmoe.MoEForwardArgs(
        tokens=tokens, local_expert_up=random(experts, ffn_size, token_dim),
        local_expert_up_v=random(experts, ffn_size, token_dim), local_expert_down=random(experts, token_dim, ffn_size),
        moe_out=torch.empty_like(tokens))
    flashmoe.forward(flash_handle, args)

    flashmoe.finalize(flash_handle)
    flashmoe.router.finalize(router_handle)
    print(f"rank {init_args.ep_rank} of {init_args.ep_world}: {tokens_per_rank} tokens, {expert_counts.tolist()} to "
          "the experts")
    return args.moe_out


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--torch-init", action="store_true", help="initialise torch.distributed first")
    parser.add_argument("--gpu", action="store_true", help="the GPU of this process's place on its machine")
    options = parser.parse_args()
    if options.torch_init:
        torch.distributed.init_process_group("gloo")
    gpu = flashmoe.get_local_rank() if options.gpu else None
    assert run_moe(tokens_per_rank=64, token_dim=512, ffn_size=256, num_experts=16, k=1, device_id=gpu).isfinite().all()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
