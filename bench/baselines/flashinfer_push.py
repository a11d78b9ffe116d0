#!/usr/bin/env python3
"""Time of one MoE layer in FlashInfer's expert-parallel bf16 push back end, by CUDA graph; one process a GPU.

The strongest bf16 peer known on Hopper. Needs flashinfer-python 0.7.2.post1, whose kernels are compiled for 9.0a on
first use (or beforehand, into its folder of ahead-of-time modules). The graph holds the whole forward, router excluded,
as in flashmoe bench. NVLink multicast is not used. What it times and prints: cases.py.
Usage: flashinfer_push.py [FOLDER | NUM_GPUS]   (default: a table on all GPUs; exit code 4 without one)
"""

import contextlib
import os
import sys

import cases as baseline

MOST_WAIT_S = 120.0


def refuse_multicast():
    """Where NVLink multicast is off, asking for it can hang the driver."""
    import flashinfer.comm.mnnvl as mnnvl
    from cuda.bindings import driver

    def refuse(*_, **__):
        raise RuntimeError("NVLink multicast is not used")

    for module in (driver, getattr(mnnvl, "cuda", None)):
        if module is not None and hasattr(module, "cuMulticastCreate"):
            module.cuMulticastCreate = refuse


def make_workspace(layer, tokens):
    """As shipped; where the machine hands out no fabric handles or RDMA-capable memory, without either."""
    try:
        return layer.create_workspace(tokens)
    except RuntimeError:
        import flashinfer.comm.mnnvl as mnnvl

        shipped = mnnvl.SymmDeviceMemory._get_allocation_prop

        def plain(self, *arguments):
            properties, *rest = shipped(self, *arguments)
            properties.allocFlags.gpuDirectRDMACapable = 0
            return (properties, *rest)

        mnnvl.is_mnnvl_fabric_supported = lambda device: False
        mnnvl.SymmDeviceMemory._get_allocation_prop = plain
        return layer.create_workspace(tokens)


def make_layer(case, rank, most_tokens):
    from flashinfer import moe_ep

    local = case.num_experts // case.num_ranks
    experts = [baseline.expert(case, e, torch) for e in range(rank * local, (rank + 1) * local)]
    ups, downs, *_ = zip(*experts)
    weights = moe_ep.MoEWeightPack(torch.stack(ups), torch.stack(downs))
    del experts, ups, downs
    config = moe_ep.Sm90_Bf16_Bf16_Bf16_PushCake_MegaMoeConfig(
        intermediate_size=case.intermediate, top_k=case.top_k, init_timeout_s=MOST_WAIT_S
    )
    return moe_ep.MoEEpLayer(
        moe_ep.BootstrapConfig(world_size=case.num_ranks, rank=rank, device=rank),
        moe_ep.FleetParams(
            num_experts=case.num_experts, max_tokens_per_rank=most_tokens, token_hidden_size=case.hidden
        ),
        weights,
        backend=moe_ep.MegaConfig(megakernel=config),
    )


def wait_for_all():
    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()


def time_case(layer, case, rank):
    from flashinfer import moe_ep

    x, ids, weights = inputs = case.inputs(rank, torch)
    y = torch.full_like(x, float("nan"))
    tensors = moe_ep.MoEEpTensors(
        hidden_states=x, topk_ids=ids.contiguous(), topk_weights=weights.contiguous(), output=y
    )
    workspace = make_workspace(layer, max(case.tokens))
    graph = torch.cuda.CUDAGraph()
    try:
        for _ in range(2):
            layer.forward(tensors, workspace=workspace)
        wait_for_all()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            layer.forward(tensors, workspace=workspace)
        wait_for_all()

        def replay():
            graph.replay()
            return y

        return baseline.measure(case, inputs, replay, dist, torch)
    finally:
        graph.reset()
        wait_for_all()
        workspace.destroy()


def run(rank, num_ranks, cases):
    os.environ.update(NCCL_NVLS_ENABLE="0", NVSHMEM_DISABLE_NVLS="1", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(num_ranks), MASTER_ADDR="127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29512")
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=num_ranks, device_id=torch.device("cuda", rank))
    with contextlib.suppress(ImportError):
        refuse_multicast()
    for group in baseline.by_shape(cases):
        try:
            if group[0].activation != "silu" or group[0].biases:
                raise NotImplementedError("its back end has gated silu layers without biases alone")
            layer = make_layer(group[0], rank, max(max(case.tokens) for case in group))
            for case in group:
                measured = time_case(layer, case, rank)
                if rank == 0:
                    baseline.say("flashinfer", case, **measured)
            layer.destroy()
            del layer
        except (NotImplementedError, ValueError) as error:  # alike on every rank: shapes decide
            for case in group if rank == 0 else ():
                baseline.say("flashinfer", case, error=f"flashinfer cannot run this: {error}")
        torch.cuda.empty_cache()
    dist.barrier()
    dist.destroy_process_group()


try:
    import torch
    import torch.distributed as dist
except ImportError:
    pass  # main() says so

if __name__ == "__main__":
    sys.exit(baseline.main("flashinfer", ("flashinfer",), run))
