"""One of two ranks that torchrun has started. Prints what making a group ends with, in three ways, when the rank never
chose its GPU; with --choose, that a layer of the group is right.
"""

import sys

import batches
import torch
import torch.distributed as distributed
from batches import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K

import flashmoe


def say(line):
    """In one piece: the other rank says something, too."""
    sys.stdout.write(f"{line}\n")


def refusals():
    page = flashmoe.InitArgs(
        data_type=flashmoe.DataType.BF16, mlp_type=flashmoe.MLPType.GATED, act_type=flashmoe.ActivationType.SILU,
        tokens_per_rank=16, token_dim=HIDDEN, ffn_size=INTERMEDIATE, num_experts=EXPERTS, top_k=TOP_K, device_id=0)
    for make in (flashmoe.Group.from_torch, lambda: flashmoe.Group.from_launcher(device=0),
                 lambda: flashmoe.initialize(page)):
        try:
            make()
            say("made")
        except flashmoe.FabricError as error:
            say(error)


def run_a_layer():
    torch.cuda.set_device(flashmoe.get_local_rank())
    group = flashmoe.Group.from_torch()
    w13, w2 = batches.weights()
    mine = slice(group.rank * EXPERTS // 2, (group.rank + 1) * EXPERTS // 2)
    problem = flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, 64, num_ranks=2)
    layer = flashmoe.Layer(problem, w13[mine], w2[mine], group=group)
    call = batches.batch(40 + group.rank, seed=group.rank)
    batches.assert_right(layer.forward(*call), batches.expected(call[0], w13, w2, *call[1:]))
    say(f"rank {group.rank} is right on GPU {layer.info.device}")


distributed.init_process_group("gloo")
if sys.argv[1:] == ["--choose"]:
    run_a_layer()
else:
    refusals()
distributed.destroy_process_group()
