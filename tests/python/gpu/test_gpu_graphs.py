"""CUDA graphs captured by torch. Classes GRAPH of docs/cases.md."""

import batches
import pytest
import torch
from batches import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K

import flashmoe


def problem(tokens):
    return flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, tokens, dtype="bf16")


class Slot:
    """Tensors that a graph keeps pointing at."""

    def __init__(self, tokens):
        self.x, self.topk_weights, self.topk_ids = batches.batch(tokens, seed=99)
        self.count = torch.tensor([tokens], device="cuda")
        self.y = torch.full_like(self.x, torch.nan)

    def load(self, tokens, seed):
        """Fills the first rows, and the others with what no call may read."""
        x, topk_weights, topk_ids = batches.batch(tokens, seed=seed)
        for mine, new, rest in ((self.x, x, torch.nan), (self.topk_weights, topk_weights, torch.nan),
                                (self.topk_ids, topk_ids, 1 << 30)):
            mine.fill_(rest)[:tokens] = new
        self.count.fill_(tokens)
        self.y.fill_(torch.nan)
        return x, topk_weights, topk_ids


def captured(calls, pool=None):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=pool):
        calls()
    return graph


def call_of(layer, slot):
    return lambda: layer.forward(slot.x, slot.topk_weights, slot.topk_ids, out=slot.y, num_tokens=slot.count)


def replay(graph, slots_and_weights, counts, seed):
    loaded = [slot.load(count, seed + index) for index, ((slot, _), count) in enumerate(zip(slots_and_weights, counts))]
    graph.replay()
    torch.cuda.synchronize()
    for (slot, weights), batch, count in zip(slots_and_weights, loaded, counts):
        assert slot.y[count:].isnan().all()
        if count:
            batches.assert_right(slot.y[:count], batches.expected(batch[0], *weights, *batch[1:]))


def test_the_first_call_ever_is_captured_and_replays_with_other_routes_and_counts():  # GRAPH1, GRAPH2
    weights, slot = batches.weights(), Slot(64)
    layer = flashmoe.Layer(problem(64), *weights)
    graph = captured(call_of(layer, slot))
    for seed, count in enumerate((64, 1, 0, 33, 64)):
        replay(graph, [(slot, weights)], [count], 10 * seed)


def test_several_layers_of_different_sizes_in_one_graph():  # GRAPH7
    weights = [batches.weights(seed=seed) for seed in range(4)]
    slots = [Slot(tokens) for tokens in (64, 8, 64, 300)]
    layers = [flashmoe.Layer(problem(len(slot.x)), *pair) for slot, pair in zip(slots, weights)]

    def calls():
        for layer, slot in zip(layers, slots):
            call_of(layer, slot)()

    graph = captured(calls)
    for seed, counts in enumerate(([64, 8, 64, 300], [0, 3, 1, 299], [7, 0, 0, 0])):
        replay(graph, list(zip(slots, weights)), counts, 100 * seed)


def test_two_graphs_replay_in_either_order_among_eager_calls():  # GRAPH4, GRAPH9
    weights = batches.weights()
    small, large = Slot(16), Slot(256)
    layers = {slot: flashmoe.Layer(problem(256), *weights) for slot in (small, large)}
    graphs = {slot: captured(call_of(layers[slot], slot)) for slot in (small, large)}
    for step, slot in enumerate((small, large, large, small, small, large)):
        replay(graphs[slot], [(slot, weights)], [1 + 13 * step % len(slot.x)], 50 * step)
        x, *routes = batches.batch(9 + step, seed=step)
        batches.assert_right(layers[small].forward(x, *routes), batches.expected(x, *weights, *routes))


def test_capture_while_another_stream_works():  # GRAPH5
    weights, slot = batches.weights(), Slot(32)
    other = flashmoe.Layer(problem(128), *batches.weights(seed=2))
    x, *routes = batches.batch(128)
    wanted = other.forward(x, *routes)
    layer = flashmoe.Layer(problem(32), *weights)
    busy = torch.cuda.Stream()
    busy.wait_stream(torch.cuda.current_stream())
    results = []
    with torch.cuda.stream(busy):
        torch.cuda._sleep(50_000_000)
        results.append(other.forward(x, *routes))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call_of(layer, slot)()
    busy.synchronize()
    assert torch.equal(results[0], wanted)
    replay(graph, [(slot, weights)], [32], 7)


def test_functions_and_routers_are_captured_without_a_warm_up():
    w13, w2 = batches.weights()
    gate = torch.randn(EXPERTS, HIDDEN, device="cuda", dtype=torch.bfloat16) / 16
    router = flashmoe.Router(EXPERTS, TOP_K, weight=gate, renormalize=True)
    x = batches.batch(24)[0]
    results = []

    def block():
        topk_weights, topk_ids = router.route(x)
        results.append(flashmoe.fused_moe(x, w13, w2, topk_weights, topk_ids, gate_up_order="gate_up"))

    graph = captured(block)
    for seed in (3, 4):
        x.copy_(batches.batch(24, seed=seed)[0])
        graph.replay()
        torch.cuda.synchronize()
        topk_weights, topk_ids = router.route(x)
        batches.assert_right(results[0], batches.expected(x, w13, w2, topk_weights, topk_ids))


def test_heaps_of_captured_functions_stay_when_others_need_the_room():  # GRAPH3
    w13, w2 = batches.weights()
    x, *routes = batches.batch(16)
    results = []
    graph = captured(lambda: results.append(flashmoe.fused_moe(x, w13, w2, *routes, gate_up_order="gate_up")))
    for tokens in (64, 1024, 4096):
        big, *big_routes = batches.batch(tokens)
        flashmoe.fused_moe(big, w13, w2, *big_routes, gate_up_order="gate_up")
        torch.cuda.empty_cache()
        graph.replay()
        torch.cuda.synchronize()
        batches.assert_right(results[0], batches.expected(x, w13, w2, *routes))


def test_replays_allocate_nothing():
    weights, slot = batches.weights(), Slot(64)
    layer = flashmoe.Layer(problem(64), *weights)
    graph = captured(call_of(layer, slot))
    graph.replay()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        graph.replay()
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before


def test_a_count_beyond_the_rows_is_raised_later():
    weights, slot = batches.weights(), Slot(16)
    layer = flashmoe.Layer(problem(16), *weights)
    slot.count.fill_(17)
    call_of(layer, slot)()
    torch.cuda.synchronize()
    with pytest.raises(flashmoe.InvalidArgument, match="17"):
        layer.check_calls()
