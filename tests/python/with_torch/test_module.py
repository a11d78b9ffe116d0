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
    (dict(group=flashmoe.Group(2)), "max_tokens"),
    (dict(group=flashmoe.Group(3), max_tokens=4), "multiple of num_ranks"),
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
