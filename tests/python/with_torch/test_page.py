"""The page interface: InitArgs, initialize, forward, finalize, router."""

import pytest
import torch

import flashmoe

SIZES = dict(tokens_per_rank=16, token_dim=32, ffn_size=24, num_experts=6, top_k=2)


def init_args(**changes):
    return flashmoe.InitArgs(**{
        **SIZES, "data_type": flashmoe.DataType.FP32, "mlp_type": flashmoe.MLPType.GATED,
        "act_type": flashmoe.ActivationType.SILU, **changes})


def make(args, seed=1, biases=False):
    torch.manual_seed(seed)
    experts, columns, rows = args.num_local_experts, (args.ffn_size, args.token_dim), (args.token_dim, args.ffn_size)
    gated = args.mlp_type == flashmoe.MLPType.GATED
    tokens = torch.randn(args.tokens_per_rank, args.token_dim)
    tensors = dict(tokens=tokens, local_expert_up=torch.randn(experts, *columns) / 6,
                   local_expert_up_v=torch.randn(experts, *columns) / 6 if gated else None,
                   local_expert_down=torch.randn(experts, *rows) / 5, moe_out=torch.empty_like(tokens))
    if biases:
        tensors.update(local_bias_up=torch.randn(experts, args.ffn_size),
                       local_bias_down=torch.randn(experts, args.token_dim),
                       local_bias_up_v=torch.randn(experts, args.ffn_size) if gated else None)
    return flashmoe.MoEForwardArgs(**tensors)


def run(args, forward_args):
    """(result, routes)."""
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    counts = torch.full((args.num_experts,), -1, dtype=torch.int32)
    weights = torch.randn(args.token_dim, args.num_experts)
    flashmoe.router.forward(router, flash, flashmoe.router.RouterForwardArgs(forward_args.tokens, weights, counts))
    assert counts.sum() == args.tokens_per_rank * args.top_k
    flashmoe.forward(flash, forward_args)
    routes = flash.routes
    flashmoe.finalize(flash)
    flashmoe.router.finalize(router)
    expected = torch.softmax((forward_args.tokens.double() @ weights.double()), 1).topk(args.top_k)
    assert torch.equal(routes[1].long(), expected.indices)
    torch.testing.assert_close(routes[0].double(), expected.values, rtol=1e-5, atol=0)
    return forward_args.moe_out, routes


@pytest.mark.parametrize("biases", [False, True])
@pytest.mark.parametrize("mlp_type", flashmoe.MLPType)
@pytest.mark.parametrize("act_type", flashmoe.ActivationType)
def test_the_layer_is_fused_moe(act_type, mlp_type, biases):
    args = init_args(act_type=act_type, mlp_type=mlp_type)
    tensors = make(args, biases=biases)
    y, (weights, ids) = run(args, tensors)
    gated = mlp_type == flashmoe.MLPType.GATED
    up, bias = tensors.local_expert_up, tensors.local_bias_up
    if gated:
        up = torch.cat([up, tensors.local_expert_up_v], 1)
        bias = torch.cat([bias, tensors.local_bias_up_v], 1) if biases else None
    expected = flashmoe.fused_moe(
        tensors.tokens, up, tensors.local_expert_down, weights, ids, gate_up_order="gate_up" if gated else None,
        activation=act_type.name.lower(), w13_bias=bias, w2_bias=tensors.local_bias_down)
    assert torch.equal(y, expected)


def test_handles_are_independent():
    args = init_args()
    first, second, router = flashmoe.initialize(args), flashmoe.initialize(args), flashmoe.router.initialize(args)
    tensors = make(args)
    routing = flashmoe.router.RouterForwardArgs(tensors.tokens, torch.randn(32, 6))
    for handle in (first, second):
        flashmoe.router.forward(router, handle, routing)
        flashmoe.forward(handle, tensors)
    before = tensors.moe_out.clone()
    flashmoe.finalize(first)
    flashmoe.forward(second, tensors)
    assert torch.equal(tensors.moe_out, before)


def test_what_is_finalized_is_gone(is_one_sentence):
    args = init_args()
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    tensors = make(args)
    routing = flashmoe.router.RouterForwardArgs(tensors.tokens, torch.randn(32, 6))
    with pytest.raises(flashmoe.InvalidArgument, match="router.forward first"):
        flashmoe.forward(flash, tensors)
    flashmoe.router.finalize(router)
    flashmoe.finalize(flash)
    for call in (lambda: flashmoe.finalize(flash), lambda: flashmoe.router.finalize(router),
                 lambda: flashmoe.forward(flash, tensors), lambda: flashmoe.router.forward(router, flash, routing)):
        with pytest.raises(flashmoe.InvalidArgument, match="finalized") as caught:
            call()
        assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("launcher", [
    dict(RANK="1", WORLD_SIZE="2", LOCAL_RANK="1"),
    dict(OMPI_COMM_WORLD_RANK="1", OMPI_COMM_WORLD_SIZE="2", OMPI_COMM_WORLD_LOCAL_RANK="1"),
    dict(SLURM_PROCID="1", SLURM_NTASKS="2", SLURM_LOCALID="1"),
], ids=["torchrun", "mpirun", "srun"])
def test_every_launcher_gives_the_same_ranks(monkeypatch, is_one_sentence, launcher):  # INIT8
    for name, value in launcher.items():
        monkeypatch.setenv(name, value)
    args = init_args()
    assert (args.ep_rank, args.ep_world, args.num_local_experts, flashmoe.get_local_rank()) == (1, 2, 3, 1)
    with pytest.raises(flashmoe.FabricError, match="2 processes were started.*one process") as caught:
        flashmoe.initialize(args)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("change, error, message", [
    (dict(token_dim=30), flashmoe.InvalidArgument, "multiple of 8"),
    (dict(top_k=7), flashmoe.InvalidArgument, "top_k"),
    (dict(data_type="bf16"), flashmoe.InvalidDType, "DataType.BF16"),
    (dict(mlp_type=2), flashmoe.InvalidDType, "MLPType.GATED"),
    (dict(ep_world=2), flashmoe.FabricError, "one process"),
    (dict(device_id=99), flashmoe.CudaError, "CUDA|GPU"),
])
def test_layers_that_cannot_be(is_one_sentence, change, error, message):
    with pytest.raises(error, match=message) as caught:
        flashmoe.initialize(init_args(**change))
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("change, error, message", [
    (dict(tokens=torch.randn(17, 32), moe_out=torch.empty(17, 32)), flashmoe.InvalidArgument, "shape"),
    (dict(tokens=[1.0]), flashmoe.InvalidDType, "list"),
    (dict(local_expert_up_v=None), flashmoe.InvalidArgument, "GATED"),
    (dict(local_bias_down=torch.randn(6, 32)), flashmoe.InvalidArgument, "biases go together"),
    (dict(local_expert_down=torch.randn(6, 24, 32).transpose(1, 2)), flashmoe.InvalidArgument, "contiguous"),
    (dict(moe_out=torch.empty(16, 32, dtype=torch.bfloat16)), flashmoe.InvalidDType, "bf16"),
])
def test_tensors_that_do_not_fit(is_one_sentence, change, error, message):
    args = init_args()
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    tensors = make(args)
    flashmoe.router.forward(router, flash, flashmoe.router.RouterForwardArgs(tensors.tokens, torch.randn(32, 6)))
    for name, value in change.items():
        setattr(tensors, name, value)
    with pytest.raises(error, match=message) as caught:
        flashmoe.forward(flash, tensors)
    assert is_one_sentence(str(caught.value))
    with pytest.raises(flashmoe.InvalidArgument, match=r"\[32, 6\]"):
        flashmoe.router.forward(
            router, flash, flashmoe.router.RouterForwardArgs(torch.randn(16, 32), torch.randn(6, 32)))
