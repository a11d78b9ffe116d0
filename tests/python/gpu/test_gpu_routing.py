"""The router on a GPU: the CPU's choices, on torch's stream, in graphs, and what it refuses."""

import pytest
import torch

import flashmoe
from flashmoe import torch_ops

FUNCTIONS = {
    "softmax_topk": dict(renormalize=True), "topk_softmax": {},
    "sigmoid_grouped": dict(num_groups=8, topk_groups=4, renormalize=True, scaling_factor=2.5), "sigmoid_topk": {},
    "softmax_group_limited": dict(num_groups=4, topk_groups=2), "sparsemixer": {},
}


def random(*shape, seed=1):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_same_routes(got, wanted, near=1e-4):
    """Ids differ only where a weight is as good as the other's."""
    (weights, ids), (wanted_weights, wanted_ids) = got, wanted
    assert weights.device.type == ids.device.type == "cuda"
    torch.testing.assert_close(weights.cpu(), wanted_weights, rtol=near, atol=near)
    assert (ids.cpu() != wanted_ids).float().mean() <= 2e-3


@pytest.mark.parametrize("tokens", [1, 100, 3000])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_logits_go_where_the_cpu_sends_them(function, tokens):
    top_k = 2 if function == "sparsemixer" else 6
    logits = random(tokens, 64)
    settings = dict(function=function, **FUNCTIONS[function])
    assert_same_routes(flashmoe.route(logits.cuda(), top_k, **settings), flashmoe.route(logits, top_k, **settings))


@pytest.mark.parametrize("x_type", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("weight_type", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tokens", [1, 37, 700])
def test_hidden_states_go_where_the_cpu_sends_them(x_type, weight_type, tokens):
    x, weight = random(tokens, 512).to(x_type), (random(96, 512, seed=2) / 20).to(weight_type)
    bias = random(96, seed=3) / 10
    settings = dict(function="sigmoid_grouped", selection_bias=random(96, seed=4) / 10, renormalize=True)
    wanted = flashmoe.Router(96, 8, weight=weight, bias=bias, **settings).route(x)
    got = torch_ops.route(x.cuda(), weight.cuda(), 8, bias=bias.cuda(),
                          **{**settings, "selection_bias": settings["selection_bias"].cuda()})
    assert_same_routes(got, wanted, near=2e-3)


def test_a_token_s_routes_do_not_depend_on_the_batch():
    x, weight = random(300, 512).bfloat16().cuda(), (random(128, 512, seed=2) / 20).bfloat16().cuda()
    router = flashmoe.Router(128, 8, weight=weight)
    weights, ids = router.route(x)
    for tokens in (1, 17, 256):
        few = router.route(x[:tokens])
        assert torch.equal(few[0], weights[:tokens]) and torch.equal(few[1], ids[:tokens])


def test_no_tokens_give_no_routes():
    weights, ids = flashmoe.route(torch.empty(0, 16, device="cuda"), 2)
    assert weights.shape == ids.shape == (0, 2)


def test_a_captured_router_replays_with_other_tokens():
    weight = (random(64, 256, seed=2) / 16).bfloat16().cuda()
    x = random(20, 256).bfloat16().cuda()
    router = flashmoe.Router(64, 4, weight=weight)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        routes = router.route(x)
    for seed in (5, 6):
        x.copy_(random(20, 256, seed=seed))
        graph.replay()
        wanted = router.route(x)
        assert torch.equal(routes[0], wanted[0]) and torch.equal(routes[1], wanted[1])


def test_it_runs_on_torch_s_current_stream():
    """Behind a long kernel on that stream, which writes the logits last."""
    stream = torch.cuda.Stream()
    wanted = random(50, 32)
    logits = torch.zeros(50, 32, device="cuda")
    source = wanted.cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        logits.copy_(source)
        weights, ids = flashmoe.route(logits, 4)
    stream.synchronize()
    assert_same_routes((weights, ids), flashmoe.route(wanted, 4))


@pytest.mark.parametrize("make, message", [
    (lambda x, w: flashmoe.Router(16, 2, weight=w).route(x.cpu()), "x is on cpu, wanted cuda:0"),
    (lambda x, w: flashmoe.Router(16, 2, weight=w.cpu()).route(x), "x is on cuda:0, wanted cpu"),
    (lambda x, w: flashmoe.Router(16, 2, weight=w).route(x.half()), "one dtype"),
    (lambda x, w: flashmoe.Router(16, 2, weight=w.double()), "weight_dtype"),
    (lambda x, w: flashmoe.Router(16, 2, weight=w[:, :60].contiguous()), "multiple of 8"),
    (lambda x, w: flashmoe.Router(16, 2, weight=w, bias=torch.zeros(16)), "bias is on cpu, wanted cuda:0"),
    (lambda x, w: flashmoe.Router(16, 2, weight=w.t().contiguous().t()), "contiguous"),
    (lambda x, w: flashmoe.Router(2048, 2, device="cuda:0"), "at most 1024"),
    (lambda x, w: flashmoe.route(torch.zeros(4, 16, device="cuda"), 17), "top_k"),
    (lambda x, w: flashmoe.Router(16, 2, weight=w).route(x.flatten()[1:].as_strided((3, 64), (64, 1))), "aligned"),
])
def test_what_does_not_fit_is_refused(is_one_sentence, make, message):
    x, weight = torch.ones(4, 64, device="cuda"), torch.ones(16, 64, device="cuda")
    with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
        make(x, weight)
    assert is_one_sentence(str(caught.value))


def test_a_gpu_that_is_not_there_is_refused():
    with pytest.raises(flashmoe.CudaError, match=r"device \(99\)"):
        flashmoe.Router(16, 2, device="cuda:99")
