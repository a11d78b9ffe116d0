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


@pytest.mark.parametrize("name", ["tokens", "local_expert_up", "local_expert_down", "local_bias_down"])
@pytest.mark.parametrize("mlp_type", flashmoe.MLPType)
def test_a_result_over_what_is_read_is_refused(is_one_sentence, mlp_type, name):
    args = init_args(mlp_type=mlp_type)
    given = make(args, biases=True)
    memory = torch.empty(1 << 14)
    read = memory[:getattr(given, name).numel()].view(getattr(given, name).shape)
    setattr(given, name, read.copy_(getattr(given, name)))
    run(args, given)
    given.moe_out = memory[:given.tokens.numel()].view(given.tokens.shape)
    with pytest.raises(flashmoe.InvalidArgument, match=f"^moe_out must not overlap {name}: ") as caught:
        run(args, given)
    assert is_one_sentence(str(caught.value))


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
    dict(SLURM_PROCID="1", SLURM_STEP_NUM_TASKS="2", SLURM_LOCALID="1"),
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
    (dict(token_dim=30), flashmoe.InvalidArgument, r"token_dim \(30\) must be a multiple of 8"),
    (dict(ffn_size=1.5), flashmoe.InvalidDType, r"ffn_size \(1.5\)"),
    (dict(tokens_per_rank=0), flashmoe.InvalidArgument, r"tokens_per_rank \(0\)"),
    (dict(ep_world=4), flashmoe.InvalidArgument, r"multiple of ep_world \(4\)"),
    (dict(ep_rank=1), flashmoe.InvalidArgument, r"ep_rank \(1\)"),
    (dict(ep_rank=-1), flashmoe.InvalidArgument, r"ep_rank \(-1\)"),
    (dict(device_id="cuda:0"), flashmoe.InvalidDType, "device_id"),
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
    (dict(tokens=torch.randn(17, 32), moe_out=torch.empty(17, 32)), flashmoe.InvalidArgument, "tokens_per_rank"),
    (dict(tokens=torch.randn(3, 32), moe_out=torch.empty(3, 32)), flashmoe.InvalidArgument, "wanted the 16 rows"),
    (dict(tokens=torch.randn(16, 32).requires_grad_()), flashmoe.ForwardOnly, "tokens requires a gradient"),
    (dict(local_expert_up=torch.randn(6, 24, 32).numpy()), flashmoe.InvalidDType, "local_expert_up must be a torch"),
    (dict(local_expert_up=torch.randn(6, 32, 24)), flashmoe.InvalidArgument, r"local_expert_up has .*\[6, 24, 32\]"),
    (dict(local_expert_up_v=torch.randn(6, 16, 32)), flashmoe.InvalidArgument, "local_expert_up_v has shape"),
    (dict(local_expert_up_v=torch.randn(6, 24, 32).double()), flashmoe.InvalidDType, "local_expert_up_v has dtype"),
    (dict(local_expert_down=None), flashmoe.InvalidDType, "local_expert_down must be a torch tensor, but is a None"),
    (dict(local_bias_up=torch.ones(6, 24, dtype=torch.int32), local_bias_up_v=torch.ones(6, 24),
          local_bias_down=torch.ones(6, 32)), flashmoe.InvalidDType, "local_bias_up has dtype int32"),
    (dict(tokens=[1.0]), flashmoe.InvalidDType, "list"),
    (dict(local_expert_up_v=None), flashmoe.InvalidArgument, "GATED"),
    (dict(local_bias_down=torch.randn(6, 32)), flashmoe.InvalidArgument, "biases go together"),
    (dict(local_expert_down=torch.randn(6, 24, 32).mT), flashmoe.InvalidArgument, "local_expert_down has strides"),
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


def routed(args, tensors, **options):
    """(layer, router) whose layer has the routes of the tokens."""
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args, **options)
    flashmoe.router.forward(router, flash, flashmoe.router.RouterForwardArgs(tensors.tokens, torch.randn(32, 6)))
    return flash, router


def by_fused_moe(tensors, routes):
    up, bias = tensors.local_expert_up, tensors.local_bias_up
    gated = tensors.local_expert_up_v is not None
    if gated:
        up = torch.cat([up, tensors.local_expert_up_v], 1)
        bias = None if bias is None else torch.cat([bias, tensors.local_bias_up_v], 1)
    return flashmoe.fused_moe(
        tensors.tokens, up, tensors.local_expert_down, *routes, gate_up_order="gate_up" if gated else None,
        w13_bias=bias, w2_bias=tensors.local_bias_down)


WEIGHTS = ["local_expert_up", "local_expert_up_v", "local_expert_down", "local_bias_up", "local_bias_up_v",
           "local_bias_down"]
CHANGES = {
    "reassigned": lambda tensors, name: setattr(tensors, name, torch.randn_like(getattr(tensors, name))),
    "in place": lambda tensors, name: getattr(tensors, name).mul_(-2),
    "data": lambda tensors, name: setattr(getattr(tensors, name), "data", torch.randn_like(getattr(tensors, name))),
}


@pytest.mark.parametrize("mlp_type, name", [
    (mlp_type, name) for mlp_type in flashmoe.MLPType for name in WEIGHTS
    if mlp_type == flashmoe.MLPType.GATED or not name.endswith("_v")])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_used(change, mlp_type, name):
    args = init_args(mlp_type=mlp_type)
    tensors = make(args, biases=True)
    flash, _ = routed(args, tensors)
    flashmoe.forward(flash, tensors)
    before = tensors.moe_out.clone()
    CHANGES[change](tensors, name)
    for _ in range(2):
        flashmoe.forward(flash, tensors)
        assert torch.equal(tensors.moe_out, by_fused_moe(tensors, flash.routes))
    assert not torch.equal(tensors.moe_out, before)


@pytest.mark.parametrize("change", [change for change in CHANGES if change != "data"])
def test_changed_weights_of_inference_mode_are_used(change):
    args = init_args()
    with torch.inference_mode():
        tensors = make(args)
        flash, _ = routed(args, tensors)
        flashmoe.forward(flash, tensors)
        CHANGES[change](tensors, "local_expert_up_v")
        flashmoe.forward(flash, tensors)
        assert torch.equal(tensors.moe_out, by_fused_moe(tensors, flash.routes))
    flashmoe.forward(flash, tensors)  # in the other mode, too
    assert torch.equal(tensors.moe_out, by_fused_moe(tensors, flash.routes))


def test_one_layer_serves_calls_with_the_same_weights():
    args = init_args()
    tensors = make(args)
    flash, _ = routed(args, tensors)
    flashmoe.forward(flash, tensors)
    layer = flash.layer_over(tensors)
    same = flashmoe.MoEForwardArgs(**{**vars(tensors), "moe_out": torch.empty_like(tensors.moe_out)})
    same.local_expert_up = same.local_expert_up.view_as(same.local_expert_up)
    assert flash.layer_over(same) is layer
    tensors.local_expert_up_v.neg_()
    assert flash.layer_over(tensors) is layer
    tensors.local_expert_up_v = tensors.local_expert_up_v.clone()
    assert flash.layer_over(tensors) is not layer


@pytest.mark.parametrize("change", ["reassigned", "in place", "data"])
def test_changed_weights_of_the_router_are_used(change):
    args = init_args()
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    given = flashmoe.router.RouterForwardArgs(torch.randn(16, 32), torch.randn(32, 6))
    flashmoe.router.forward(router, flash, given)
    CHANGES[change](given, "weights")
    flashmoe.router.forward(router, flash, given)
    expected = torch.softmax((given.tokens.double() @ given.weights.double()), 1).topk(args.top_k).indices
    assert torch.equal(flash.routes[1].long(), expected)


def test_a_handle_keeps_the_sizes_it_was_made_with():
    args = init_args()
    tensors = make(args)
    flash, router = routed(args, tensors)
    args.token_dim, args.num_experts, args.mlp_type = 64, 12, flashmoe.MLPType.VANILLA
    flashmoe.forward(flash, tensors)
    flashmoe.router.forward(router, flash, flashmoe.router.RouterForwardArgs(tensors.tokens, torch.randn(32, 6)))


@pytest.mark.parametrize("mlp_type", flashmoe.MLPType)
def test_the_type_of_a_call_is_the_layer_s(is_one_sentence, mlp_type):
    args = init_args(mlp_type=mlp_type)
    tensors = make(args)
    flash, _ = routed(args, tensors)
    tensors.mt = mlp_type
    flashmoe.forward(flash, tensors)
    tensors.mt = flashmoe.MLPType(1 - mlp_type)
    with pytest.raises(flashmoe.InvalidArgument, match="mt .*must be InitArgs' mlp_type") as caught:
        flashmoe.forward(flash, tensors)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("change, error, message", [
    (dict(expert_counts=torch.zeros(6, dtype=torch.int64)), flashmoe.InvalidDType, "expert_counts has dtype int64"),
    (dict(expert_counts=torch.zeros(5, dtype=torch.int32)), flashmoe.InvalidArgument, r"expert_counts has shape \[5\]"),
    (dict(expert_counts=[0] * 6), flashmoe.InvalidDType, "expert_counts must be a torch tensor, but is a list"),
    (dict(expert_counts=torch.zeros(6, dtype=torch.int32, device="meta")), flashmoe.InvalidArgument, "is on meta"),
    (dict(weights=torch.randn(32, 6).numpy()), flashmoe.InvalidDType, "weights must be a torch tensor"),
    (dict(weights=torch.randn(32, 6, device="meta")), flashmoe.InvalidArgument, "weights is on meta, wanted cpu"),
    (dict(weights=torch.ones(32, 6, dtype=torch.int64)), flashmoe.InvalidDType, "weights has dtype int64"),
    (dict(tokens=torch.randn(17, 32)), flashmoe.InvalidArgument, r"tokens_per_rank \(16\)"),
    (dict(tokens=torch.randn(3, 40)), flashmoe.InvalidArgument, "tokens has shape"),
])
def test_a_router_s_tensors_that_do_not_fit(is_one_sentence, change, error, message):
    args = init_args()
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    given = dict(tokens=torch.randn(16, 32), weights=torch.randn(32, 6), expert_counts=torch.ones(6, dtype=torch.int32))
    with pytest.raises(error, match=message) as caught:
        flashmoe.router.forward(router, flash, flashmoe.router.RouterForwardArgs(**{**given, **change}))
    assert is_one_sentence(str(caught.value))
    assert flash.routes is None and given["expert_counts"].sum() == 6


def test_arguments_of_another_class_are_named(is_one_sentence):
    args = init_args()
    tensors = make(args)
    flash, router = routed(args, tensors)
    routing = flashmoe.router.RouterForwardArgs(tensors.tokens, torch.randn(32, 6))
    wrong = {
        "^args is a NoneType, wanted flashmoe.InitArgs": lambda: flashmoe.initialize(None),
        "^args is a dict": lambda: flashmoe.router.initialize({}),
        "^flash_handle is a RouterHandle": lambda: flashmoe.forward(router, tensors),
        "^args is a RouterForwardArgs": lambda: flashmoe.forward(flash, routing),
        "^router_handle is a FlashHandle": lambda: flashmoe.router.forward(flash, router, routing),
        "^flash_handle is a NoneType": lambda: flashmoe.router.forward(router, None, routing),
        "^args is a MoEForwardArgs": lambda: flashmoe.router.forward(router, flash, tensors),
        "^flash_handle is a RouterHandle, wanted what": lambda: flashmoe.finalize(router),
        "^router_handle is a FlashHandle, wanted what": lambda: flashmoe.router.finalize(flash),
    }
    for message, call in wrong.items():
        with pytest.raises(flashmoe.InvalidDType, match=message) as caught:
            call()
        assert is_one_sentence(str(caught.value))


def test_a_router_of_another_layer_is_refused(is_one_sentence):
    tensors = make(init_args())
    router = flashmoe.router.initialize(init_args(top_k=3))
    with pytest.raises(flashmoe.InvalidArgument, match=r"top_k of the router \(3\) must be the layer's") as caught:
        flashmoe.router.forward(router, flashmoe.initialize(init_args()),
                                flashmoe.router.RouterForwardArgs(tensors.tokens, torch.randn(32, 6)))
    assert is_one_sentence(str(caught.value))
