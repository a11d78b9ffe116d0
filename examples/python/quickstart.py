"""Router and layer through the page interface.

    python3 quickstart.py
    torchrun --nproc_per_node=1 quickstart.py --torch-init
    mpirun -n 1 python3 quickstart.py
"""

import argparse

import torch

import flashmoe


def run_moe(tokens_per_rank: int, token_dim: int, ffn_size: int, num_experts: int, k: int) -> torch.Tensor:
    init_args = flashmoe.InitArgs(
        data_type=flashmoe.DataType.BF16, mlp_type=flashmoe.MLPType.GATED, act_type=flashmoe.ActivationType.SILU,
        tokens_per_rank=tokens_per_rank, token_dim=token_dim, ffn_size=ffn_size, num_experts=num_experts, top_k=k)
    flash_handle = flashmoe.initialize(init_args)
    router_handle = flashmoe.router.initialize(init_args)

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).uniform_(-1.0, 1.0)

    tokens = random(tokens_per_rank, token_dim)
    expert_counts = torch.zeros(num_experts, dtype=torch.int32)
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
    if parser.parse_args().torch_init:
        torch.distributed.init_process_group("gloo")
    assert run_moe(tokens_per_rank=64, token_dim=512, ffn_size=256, num_experts=16, k=1).isfinite().all()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
