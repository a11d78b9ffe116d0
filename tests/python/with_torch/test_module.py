"""flashmoe.MoE, alone and with its experts spread over ranks."""

import copy

import pytest
import torch

import flashmoe

SIZES = dict(hidden=64, intermediate=48, num_experts=8, top_k=2)


@pytest.fixture
def module():
    torch.manual_seed(1)
    return flashmoe.MoE(**SIZES, renormalize=True, expert_bias=True, dtype=torch.float32)


def test_the_module_routes_and_runs_its_experts(module):
    torch.nn.init.normal_(module.w13_bias)
    x = torch.randn(2, 5, 64)
    weights, ids = module.route(x.reshape(-1, 64))
    logits = x.reshape(-1, 64).double() @ module.router_weight.double().T
    expected, expected_ids = torch.softmax(logits, 1).topk(2)
    assert torch.equal(ids.long(), expected_ids)
    torch.testing.assert_close(weights.double(), expected / expected.sum(1, keepdim=True), rtol=1e-6, atol=0)
    y = module(x)
    assert y.shape == x.shape
    by_hand = flashmoe.fused_moe(x.reshape(-1, 64), module.w13, module.w2, weights, ids, gate_up_order="gate_up",
                                 w13_bias=module.w13_bias, w2_bias=module.w2_bias)
    assert torch.equal(y, by_hand.reshape(x.shape))
    assert torch.equal(module(x, weights, ids), y)
    assert torch.equal(copy.deepcopy(module)(x), y)


def test_state_is_saved_and_loaded(module, tmp_path):
    torch.save(module.state_dict(), tmp_path / "moe.pt")
    other = flashmoe.MoE(**SIZES, renormalize=True, expert_bias=True, dtype=torch.float32)
    other.load_state_dict(torch.load(tmp_path / "moe.pt"))
    x = torch.randn(3, 64)
    assert torch.equal(other(x), module(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_other_types(module, dtype):
    x = torch.randn(40, 64)
    lower = flashmoe.MoE(**SIZES, renormalize=True, expert_bias=True, dtype=dtype)
    lower.load_state_dict(module.state_dict())
    rounded = x.to(dtype)
    routes = module.route(rounded.float())
    y = lower(rounded, *routes)
    assert y.dtype == dtype
    expected = module(rounded.float(), *routes)
    assert (y.float() - expected).norm() / expected.norm() <= (1e-2 if dtype == torch.bfloat16 else 2e-3)


def test_compiled_equals_eager(module):
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    x = torch.randn(7, 64)
    with torch.no_grad():
        assert torch.equal(compiled(x), module(x))


@pytest.mark.parametrize("spread", [False, True], ids=["alone", "group"])
def test_compiled_for_any_number_of_tokens_equals_eager(spread):
    torch._dynamo.reset()
    group = dict(group=flashmoe.Group(1), max_tokens=32) if spread else {}
    module = flashmoe.MoE(**SIZES, **group, scaling_factor=2.5, activation="swiglu_clamped", swiglu_alpha=1.25,
                          dtype=torch.float32)
    with torch.no_grad():
        module(torch.randn(1, 64))
        compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
        for tokens in (7, 3, 30):
            x = torch.randn(tokens, 64)
            assert torch.equal(compiled(x), module(x))


def test_gradients_are_refused(module):
    with pytest.raises(flashmoe.ForwardOnly):
        module(torch.randn(3, 64)).sum().backward()


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_share_the_experts(module, on_ranks, num_ranks):  # GROUP2: two groups at the same time
    groups = [flashmoe.Group(num_ranks) for _ in range(2)]
    batches = torch.randn(2, num_ranks, 9, 64)
    with torch.no_grad():
        expected = module(batches)

    def work(index):
        which, rank = divmod(index, num_ranks)
        local = 8 // num_ranks
        spread = flashmoe.MoE(**SIZES, renormalize=True, expert_bias=True, dtype=torch.float32, group=groups[which],
                              rank=rank, max_tokens=16)
        mine = slice(rank * local, (rank + 1) * local)
        with torch.no_grad():
            spread.router_weight.copy_(module.router_weight)
            for name in ("w13", "w2", "w13_bias", "w2_bias"):
                getattr(spread, name).copy_(getattr(module, name)[mine])
            results = [spread(batches[which, rank]) for _ in range(3)]
            results.append(torch.compile(spread, fullgraph=True, backend="eager")(batches[which, rank]))
        with pytest.raises(flashmoe.InvalidArgument, match="before"):
            spread.half()
        return results

    for index, results in enumerate(on_ranks(2 * num_ranks, work)):
        for y in results:
            torch.testing.assert_close(y, expected[divmod(index, num_ranks)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("change, message", [
    (dict(hidden=60), "hidden"),
    (dict(top_k=9), "top_k"),
    (dict(dtype=torch.int8), "dtype"),
    (dict(group=3), "group must be a flashmoe.Group, but is a int"),
    (dict(group=flashmoe.Group(2)), "max_tokens"),
    (dict(group=flashmoe.Group(3), max_tokens=4), "multiple of num_ranks"),
    (dict(group=flashmoe.Group(2), max_tokens=4, rank=2), r"rank \(2\) must be in 0..1"),
    (dict(rank=1), r"rank \(1\) must be in 0..0"),
    (dict(router="softmax"), "^router .'softmax'. must be one of softmax_topk"),
    (dict(router="sigmoid_grouped", num_groups=3), "num_groups"),
    (dict(router="sparsemixer", top_k=3), "top_k"),
    (dict(scaling_factor=0.0), "scaling_factor"),
    (dict(selection_bias=True), "selection_bias goes with"),
    (dict(num_groups=4), "num_groups .4. and topk_groups .1. must be 1 with softmax_topk, which has no groups"),
    (dict(num_groups=3), "num_groups .3. and topk_groups .1. must be 1 with softmax_topk"),
    (dict(router=None, renormalize=True, scaling_factor=2.5), "renormalize and scaling_factor .* with router=None"),
    (dict(router=None, num_groups=4, topk_groups=2), "num_groups and topk_groups must be left out"),
    (dict(router=None, router_bias=True), "router_bias must be left out"),
    (dict(router=None, selection_bias=True), "selection_bias must be left out"),
])
def test_modules_that_cannot_be(is_one_sentence, change, message):
    with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
        flashmoe.MoE(**{**SIZES, **change})
    assert is_one_sentence(str(caught.value))


def test_bad_calls(module):
    with pytest.raises(flashmoe.InvalidArgument, match="wanted"):
        module(torch.randn(3, 72))
    with pytest.raises(flashmoe.InvalidArgument, match="go together"):
        module(torch.randn(3, 64), torch.ones(3, 2))
    without = flashmoe.MoE(**SIZES, router=None)
    with pytest.raises(flashmoe.InvalidArgument, match="without a router"):
        without(torch.randn(3, 64))


@pytest.mark.parametrize("shape", [(2, 10), (1, 20), (4, 5, 1), (2, 5, 1, 2), (5, 2, 2), (20,)], ids=str)
@pytest.mark.parametrize("name", ["topk_weights", "topk_ids"])
def test_routes_of_another_shape_are_refused(module, is_one_sentence, name, shape):
    x = torch.randn(2, 5, 64)
    routes = dict(zip(("topk_weights", "topk_ids"), module.route(x.reshape(-1, 64))))
    expected = module(x, **routes)
    assert torch.equal(module(x, **{key: value.reshape(2, 5, 2) for key, value in routes.items()}), expected)
    with pytest.raises(flashmoe.InvalidArgument, match=f"{name} has shape .*wanted .2, 5, 2. as hidden") as caught:
        module(x, **{**routes, name: routes[name].reshape(shape)})
    assert is_one_sentence(str(caught.value))


def test_tokens_of_any_strides(module):
    x = torch.randn(9, 128)[:, ::2]
    assert not x.is_contiguous() and torch.equal(module(x), module(x.contiguous()))


CONVERSIONS = {torch.bfloat16: 1.5e-2, torch.float16: 2e-3, torch.float64: 1e-5}


@pytest.mark.parametrize("spread", [False, True], ids=["alone", "group"])
@pytest.mark.parametrize("dtype", CONVERSIONS, ids=str)
@pytest.mark.parametrize("router", ["softmax_topk", "sigmoid_grouped"])
def test_a_converted_module_computes_the_same(router, dtype, spread):
    torch.manual_seed(2)
    group = dict(group=flashmoe.Group(1), max_tokens=8) if spread else {}
    settings = dict(router=router, router_bias=True, selection_bias=router == "sigmoid_grouped", expert_bias=True)
    exact = flashmoe.MoE(**SIZES, **settings, dtype=torch.float32)
    converted = flashmoe.MoE(**SIZES, **settings, **group, dtype=torch.float32)
    for name, parameter in exact.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    converted.load_state_dict(exact.state_dict())
    converted.to(dtype)
    assert converted.problem.dtype == {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}[dtype]
    x = torch.randn(7, 64).to(dtype).float()
    routes = converted.route(x.to(dtype))
    y, expected = converted(x.to(dtype), *routes), exact(x, *routes)
    assert y.dtype == dtype
    assert (y.float() - expected).norm() / expected.norm() <= CONVERSIONS[dtype]


REPLACEMENTS = {
    "assigned state": lambda module, name, value: module.load_state_dict({name: value}, strict=False, assign=True),
    "parameter": lambda module, name, value: setattr(module, name, torch.nn.Parameter(value)),
    "data": lambda module, name, value: setattr(getattr(module, name), "data", value),
}


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("replace", REPLACEMENTS)
@pytest.mark.parametrize("name", ["w13", "w2", "w13_bias", "w2_bias"])
def test_replaced_weights_of_a_group_are_refused_and_changed_ones_used(is_one_sentence, name, replace, compiled):
    torch._dynamo.reset()
    spread, alone = (flashmoe.MoE(**SIZES, expert_bias=True, dtype=torch.float32, **group)
                     for group in (dict(group=flashmoe.Group(1), max_tokens=8), {}))
    x = torch.randn(5, 64)
    spread(x)
    call = torch.compile(spread, fullgraph=True, backend="eager") if compiled else spread
    with torch.no_grad():
        getattr(spread, name).copy_(torch.randn_like(getattr(spread, name)))
        alone.load_state_dict(spread.state_dict())
        assert torch.equal(call(x), alone(x))
        REPLACEMENTS[replace](spread, name, torch.randn_like(getattr(spread, name)))
        with pytest.raises(flashmoe.InvalidArgument, match=f"^{name} is not where it was") as caught:
            call(x)
    assert is_one_sentence(str(caught.value))


def test_replaced_weights_before_the_first_call_are_used():
    spread = flashmoe.MoE(**SIZES, dtype=torch.float32, group=flashmoe.Group(1), max_tokens=8)
    alone = flashmoe.MoE(**SIZES, dtype=torch.bfloat16)
    spread.load_state_dict(alone.state_dict(), assign=True)
    x = torch.randn(5, 64).bfloat16()
    assert torch.equal(spread(x), alone(x)) and spread.problem.dtype == "bf16"


def test_weights_that_a_layer_cannot_read_are_told_by_their_names():
    spread = flashmoe.MoE(**SIZES, dtype=torch.float32, group=flashmoe.Group(1), max_tokens=8)
    spread.w2 = torch.nn.Parameter(torch.randn(8, 48, 64).transpose(1, 2))
    with pytest.raises(flashmoe.InvalidArgument, match="^w2 has strides"):
        spread(torch.randn(5, 64))


@pytest.mark.parametrize("x, error, message", [
    (torch.randn(3, 64, device="meta"), flashmoe.InvalidArgument, "hidden_states is on meta, wanted cpu as the router"),
    (torch.randn(2, 3, 64), flashmoe.InvalidArgument, "hidden_states has shape .2, 3, 64."),
    (torch.randn(3, 72), flashmoe.InvalidArgument, "hidden_states has shape"),
    (torch.randn(3, 128)[:, ::2], flashmoe.InvalidArgument, "hidden_states has strides"),
    (torch.ones(3, 64, dtype=torch.int32), flashmoe.InvalidDType, "hidden_states has dtype torch.int32"),
    ([1.0], flashmoe.InvalidDType, "hidden_states must be a torch tensor"),
])
def test_what_the_router_does_not_take_is_told_by_its_name(module, is_one_sentence, x, error, message):
    with pytest.raises(error, match=message) as caught:
        module.route(x)
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("group", [None, 1], ids=["alone", "group"])
def test_transforms_that_differentiate_are_refused(group):
    spread = dict(group=flashmoe.Group(group), max_tokens=8) if group else {}
    module = flashmoe.MoE(**SIZES, dtype=torch.float32, **spread)
    x = torch.randn(5, 64)
    with torch.no_grad():
        weights, ids = module.route(x)
        module(x)
    for call in (lambda: torch.func.grad(lambda value: module(value).sum())(x),
                 lambda: torch.func.jvp(lambda value: module(value, weights, ids), (x,), (x,)),
                 lambda: torch.func.grad(lambda value: flashmoe.route(value, 2)[0].sum())(x),
                 lambda: torch.func.grad(lambda w2: torch.func.functional_call(
                     module, {"w2": w2}, (x, weights, ids)).sum())(module.w2.detach())):
        with pytest.raises(flashmoe.ForwardOnly):
            call()
