"""flashmoe.fused_moe and its operators on CPU tensors, against a naive computation in fp64."""

import concurrent.futures
import gc
import weakref

import numpy
import pytest
import torch
from activations import ACTIVATIONS

import flashmoe
from flashmoe import layer_pool, torch_arguments, torch_ops

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS = 64, 48, 6, 3, 37
TOLERANCES = {torch.float64: 1e-13, torch.float32: 1e-5, torch.float16: 8e-4, torch.bfloat16: 4.5e-3}


def make(dtype=torch.float32, experts=EXPERTS, gated=True, seed=1, tokens=TOKENS, top_k=TOP_K):
    torch.manual_seed(seed)
    w13 = torch.randn(experts, INTERMEDIATE * (2 if gated else 1), HIDDEN) / HIDDEN**0.5
    w2 = torch.randn(experts, HIDDEN, INTERMEDIATE) / INTERMEDIATE**0.5
    topk_weights, topk_ids = flashmoe.route(torch.randn(tokens, experts), top_k, renormalize=True)
    x = torch.randn(tokens, HIDDEN)
    return x.to(dtype), w13.to(dtype), w2.to(dtype), topk_weights, topk_ids


def reference(x, w13, w2, topk_weights, topk_ids, activation="silu", on_input=False, w13_bias=None, w2_bias=None):
    """In fp64, gate rows first."""
    x, w13, w2, topk_weights = (tensor.double() for tensor in (x, w13, w2, topk_weights))
    y = torch.zeros_like(x)
    for token in range(len(x)):
        for weight, expert in zip(topk_weights[token], topk_ids[token]):
            if expert < 0:
                continue
            columns = (w13[expert] @ x[token]) * (weight if on_input else 1)
            columns = columns if w13_bias is None else columns + w13_bias[expert]
            inner = ACTIVATIONS[activation](columns[:w2.shape[2]])
            inner = inner * columns[w2.shape[2]:] if w13.shape[1] > w2.shape[2] else inner
            result = w2[expert] @ inner
            result = result if w2_bias is None else result + w2_bias[expert]
            y[token] += result * (1 if on_input else weight)
    return y


def relative_l2(value, expected):
    return float((value.double() - expected).norm() / expected.norm())


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_results_are_the_reference_s(dtype):
    arguments = make(dtype)
    y = flashmoe.fused_moe(*arguments, gate_up_order="gate_up")
    assert y.dtype == dtype and y.shape == (TOKENS, HIDDEN) and y.is_contiguous()  # LAYOUT4
    assert relative_l2(y, reference(*arguments)) <= TOLERANCES[dtype]
    for _ in range(3):  # DET1
        assert torch.equal(flashmoe.fused_moe(*arguments, gate_up_order="gate_up"), y)


def test_types_of_equal_size_take_turns_on_one_heap():
    """Equal layers of bf16 and fp16 have one geometry, and so one heap: each still runs as its own type."""
    calls = [make(dtype) for dtype in (torch.bfloat16, torch.float16)]
    for _ in range(2):
        for arguments in calls:
            y = flashmoe.fused_moe(*arguments, gate_up_order="gate_up")
            assert relative_l2(y, reference(*arguments)) <= TOLERANCES[y.dtype]


@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_activation_gated_and_not(activation, gated):  # SEM2
    arguments = make(gated=gated)
    y = flashmoe.fused_moe(*arguments, activation=activation, gate_up_order="gate_up" if gated else None)
    assert relative_l2(y, reference(*arguments, activation=activation)) <= 1e-5


@pytest.mark.parametrize("order", ["gate_up", "up_gate", "interleaved"])
def test_every_order_of_gate_and_up(order):
    x, w13, w2, weights, ids = make()
    bias = torch.randn(EXPERTS, 2 * INTERMEDIATE)
    expected = reference(x, w13, w2, weights, ids, w13_bias=bias)
    if order != "gate_up":
        halves = [tensor.chunk(2, dim=1) for tensor in (w13, bias)]
        if order == "up_gate":
            w13, bias = (torch.cat([up, gate], dim=1) for gate, up in halves)
        else:
            w13, bias = (torch.stack([gate, up], dim=2).flatten(1, 2) for gate, up in halves)
    y = flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order=order, w13_bias=bias)
    assert relative_l2(y, expected) <= 1e-5


def test_weight_on_input_and_biases():  # SEM7
    arguments = make()
    biases = dict(w13_bias=torch.randn(EXPERTS, 2 * INTERMEDIATE), w2_bias=torch.randn(EXPERTS, HIDDEN))
    for on_input in (False, True):
        y = flashmoe.fused_moe(*arguments, gate_up_order="gate_up", apply_router_weight_on_input=on_input, **biases)
        assert relative_l2(y, reference(*arguments, on_input=on_input, **biases)) <= 1e-5


@pytest.mark.parametrize("dtype", [
    torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32], ids=str)
def test_ids_of_any_integer_type(dtype):  # LAYOUT5, LAYOUT8
    *arguments, ids = make()
    expected = flashmoe.fused_moe(*arguments, ids, gate_up_order="gate_up")
    assert torch.equal(flashmoe.fused_moe(*arguments, ids.to(dtype), gate_up_order="gate_up"), expected)


@pytest.mark.parametrize("function", [
    "softmax_topk", "topk_softmax", "sigmoid_grouped", "sigmoid_topk", "softmax_group_limited", "sparsemixer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_routes_of_any_router_go_into_the_experts(function, dtype):  # LAYOUT7, LAYOUT8
    x, w13, w2, *_ = make(experts=8)
    logits = torch.randn(TOKENS, 8, dtype=dtype)
    weights, ids = flashmoe.route(logits, 2, function=function)
    assert weights.dtype == torch.float32 and ids.dtype == torch.int32
    if function == "softmax_topk":
        expected = torch.softmax(logits.double(), dim=1).gather(1, ids.long())
        torch.testing.assert_close(weights.double(), expected, rtol=1e-6, atol=0)
    y = flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up")
    assert relative_l2(y, reference(x, w13, w2, weights, ids)) <= 1e-5


def test_masked_routes_and_no_tokens():  # IDS1
    x, w13, w2, weights, ids = make()
    ids[torch.rand(ids.shape) < 0.3] = -1
    ids[4] = -1
    y = flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up")
    assert torch.equal(y[4], torch.zeros(HIDDEN))
    assert relative_l2(y, reference(x, w13, w2, weights, ids)) <= 1e-5
    none = flashmoe.fused_moe(x[:0], w13, w2, weights[:0], ids[:0], gate_up_order="gate_up")
    assert none.shape == (0, HIDDEN)


@pytest.mark.parametrize("num_ranks", [2, 6])
def test_maps_of_experts_give_partial_sums(num_ranks):  # IDS2, IDS3
    x, w13, w2, weights, ids = make()
    local = EXPERTS // num_ranks
    total = torch.zeros(TOKENS, HIDDEN)
    for rank in range(num_ranks):
        mine = slice(rank * local, (rank + 1) * local)
        expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32)
        expert_map[mine] = torch.arange(local, dtype=torch.int32)
        part = flashmoe.fused_moe(x, w13[mine], w2[mine], weights, ids, gate_up_order="gate_up", expert_map=expert_map)
        mine_ids = torch.where((ids >= mine.start) & (ids < mine.stop), ids, -1)
        expected = reference(x, w13, w2, weights, mine_ids)
        assert relative_l2(part, expected) <= 1e-5
        total += part
    assert relative_l2(total, reference(x, w13, w2, weights, ids)) <= 1e-5


def test_the_input_is_left_alone_and_strides_do_not_matter_for_routes():  # RACE8
    x, w13, w2, weights, ids = make()
    before = x.clone()
    expected = flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up")
    assert torch.equal(x, before)
    apart = [tensor.repeat_interleave(2, dim=1)[:, ::2] for tensor in (weights, ids)]
    assert not apart[0].is_contiguous()
    assert torch.equal(flashmoe.fused_moe(x, w13, w2, *apart, gate_up_order="gate_up"), expected)


def test_no_call_keeps_weights_alive():  # MEM2
    arguments = make(torch.float16)
    kept = weakref.ref(arguments[1].untyped_storage()), weakref.ref(arguments[1])
    for tokens in (1, 2, 37):
        flashmoe.fused_moe(arguments[0][:tokens], *arguments[1:3], *(t[:tokens] for t in arguments[3:]),
                           gate_up_order="gate_up")
    del arguments
    gc.collect()
    assert kept[1]() is None


def test_memory_between_calls_is_bounded():  # MEM1, MEM3
    flashmoe.release_memory()
    assert torch_ops._pool.bytes_kept() == 0
    pool = layer_pool.LayerPool(most_bytes=1 << 20)
    seen = []
    for tokens in (8, 16, 32, 64, 128, 256, 256, 8):
        problem = flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, tokens, dtype="fp32")
        need = pool.run(problem, "cpu", *make()[1:3], lambda layer: layer.info.heap_bytes + layer.info.local_bytes)
        seen.append(pool.bytes_kept())
        assert need <= seen[-1] <= max(1 << 20, need)
    assert max(seen) > min(seen) > 0
    pool.clear()
    assert pool.bytes_kept() == 0


def test_a_heap_that_a_graph_uses_outlives_a_call_that_fails():
    problem = flashmoe.Problem(hidden=HIDDEN, intermediate=INTERMEDIATE, num_experts=EXPERTS, top_k=TOP_K, max_tokens=8,
                               dtype="fp32")
    _, w13, w2, _, _ = make()
    pool = layer_pool.LayerPool()
    used = pool.run(problem, "cpu", w13, w2, weakref.ref, captured=True)
    with pytest.raises(ZeroDivisionError):
        pool.run(problem, "cpu", w13, w2, lambda layer: 1 / 0)
    gc.collect()
    assert used() is not None
    pool.clear()
    gc.collect()
    assert used() is None



def test_a_layer_refuses_tensors_of_another_device():
    x, w13, w2, weights, ids = make()
    layer = flashmoe.Layer(flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS, dtype="fp32"), w13, w2)
    with pytest.raises(flashmoe.InvalidArgument, match="x is on meta, wanted cpu"):
        layer.forward(x.to("meta"), weights, ids)
    with pytest.raises(flashmoe.ForwardOnly, match="x requires a gradient"):
        layer.forward(x.requires_grad_(), weights, ids)


@torch.inference_mode()
def test_inference_mode_changes_nothing():
    arguments = make()
    assert relative_l2(flashmoe.fused_moe(*arguments, gate_up_order="gate_up"), reference(*arguments)) <= 1e-5


def test_gradients_are_refused():
    x, w13, w2, weights, ids = make()
    w13.requires_grad_()
    with pytest.raises(flashmoe.ForwardOnly, match="forward only"):
        flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up").sum().backward()
    with torch.no_grad():
        assert not flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up").requires_grad


@pytest.mark.parametrize("change, error, message", [
    (dict(gate_up_order="gate"), ValueError, "gate_up, up_gate, interleaved"),
    (dict(gate_up_order=None), ValueError, "how w13 was packed"),
    (dict(activation="swish"), ValueError, "silu"),
    (dict(w13=torch.randn(EXPERTS, INTERMEDIATE, HIDDEN)), ValueError, "gate_up_order"),
    (dict(w13=torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN - 8)), ValueError, "do not go together"),
    (dict(w13=torch.randn(EXPERTS, HIDDEN, 2 * INTERMEDIATE).transpose(1, 2)), ValueError, "^w13 has strides"),
    (dict(w13=torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN).bfloat16()), TypeError, "w13 has dtype"),
    (dict(w13=torch.randn(0, 2 * INTERMEDIATE, HIDDEN), w2=torch.randn(0, HIDDEN, INTERMEDIATE)), ValueError,
     "^w13 has shape .0, 96, 64., which holds no experts"),
    (dict(w2=[1]), TypeError, "w2 must be a torch tensor"),
    (dict(hidden_states=torch.randn(TOKENS, HIDDEN + 1)), ValueError, "hidden_states"),
    (dict(hidden_states=torch.randn(TOKENS, 2 * HIDDEN)[:, ::2]), ValueError, "^hidden_states has strides"),
    (dict(hidden_states=torch.randn(HIDDEN)), ValueError, "hidden_states"),
    (dict(hidden_states=torch.randn(TOKENS, HIDDEN).to_sparse()), ValueError, "layout sparse_coo, wanted a dense one"),
    (dict(w13=torch.randn(EXPERTS, 2 * INTERMEDIATE, HIDDEN).to_sparse()), ValueError, "w13 is a tensor of layout"),
    (dict(hidden_states=torch.ones(TOKENS, HIDDEN, dtype=torch.int32)), TypeError,
     "^hidden_states has dtype torch.int32, wanted bf16, fp16, fp32 or fp64"),
    (dict(topk_ids=torch.zeros(TOKENS, TOP_K)), TypeError, "topk_ids"),
    (dict(topk_ids=torch.zeros(TOKENS, TOP_K, dtype=torch.uint64)), TypeError,
     "^topk_ids has dtype torch.uint64, wanted int8 to int64 or uint8 to uint32"),
    (dict(expert_map=torch.zeros(2, dtype=torch.uint64)), TypeError, "^expert_map has dtype torch.uint64, wanted int8"),
    (dict(topk_ids=torch.zeros(TOKENS, TOP_K + 1, dtype=torch.int32)), ValueError, "^topk_ids has .*as topk_weights"),
    (dict(topk_ids=torch.full((TOKENS, TOP_K), EXPERTS)), ValueError, str(EXPERTS)),
    (dict(topk_weights=torch.ones(TOKENS, TOP_K, dtype=torch.int32)), TypeError, "topk_weights"),
    (dict(expert_map=torch.zeros(2, dtype=torch.int32), topk_ids=torch.full((TOKENS, TOP_K), 2)), ValueError, "id"),
    (dict(expert_map=torch.zeros(2)), TypeError, "expert_map"),
    (dict(expert_map=torch.zeros(2, 2, dtype=torch.int32)), ValueError, "expert_map"),
    (dict(topk_ids=torch.zeros(2, TOP_K, dtype=torch.int32)), ValueError, "topk_weights|topk_ids"),
    (dict(w2_bias=torch.zeros(EXPERTS)), ValueError, "w2_bias"),
    (dict(w2_bias=torch.zeros(EXPERTS, HIDDEN).numpy()), TypeError, "w2_bias must be a torch tensor, but is a ndarray"),
    (dict(w13_bias=torch.zeros(EXPERTS, 2 * INTERMEDIATE, device="meta")), ValueError, "w13_bias is on meta, wanted"),
    (dict(topk_weights=torch.ones(TOKENS, TOP_K).numpy()), TypeError, "topk_weights must be a torch tensor"),
    (dict(topk_ids=[[0] * TOP_K] * TOKENS), TypeError, "topk_ids must be a torch tensor, but is a list"),
    (dict(expert_map=torch.arange(EXPERTS).numpy()), TypeError, "expert_map must be a torch tensor"),
    (dict(expert_map=torch.arange(EXPERTS, device="meta")), ValueError, "expert_map is on meta, wanted cpu"),
    (dict(activation=None), ValueError, "activation .None. must be one of silu"),
    (dict(swiglu_alpha="x"), TypeError, "swiglu_alpha .'x'. must be a number"),
    (dict(swiglu_limit=None), TypeError, "swiglu_limit .None. must be a number"),
    (dict(apply_router_weight_on_input=1.5), TypeError, "apply_router_weight_on_input .1.5. must be True or False"),
    (dict(w2=torch.randn(EXPERTS, INTERMEDIATE, HIDDEN).transpose(1, 2)), ValueError, "^w2 has strides"),
    (dict(hidden_states=torch.randn(TOKENS, HIDDEN, device="meta")), ValueError, "w13 is on cpu, wanted meta"),
    (dict(topk_ids=torch.zeros(TOKENS, TOP_K, dtype=torch.int32, device="meta")), ValueError, "topk_ids is on meta"),
])
def test_bad_input_is_refused_in_a_sentence(is_one_sentence, change, error, message):
    names = ("hidden_states", "w13", "w2", "topk_weights", "topk_ids")
    good = {**dict(zip(names, make())), "gate_up_order": "gate_up"}
    expected = flashmoe.fused_moe(**good)
    with pytest.raises(error, match=message) as caught:
        flashmoe.fused_moe(**{**good, **change})
    assert isinstance(caught.value, flashmoe.InvalidArgument)
    assert is_one_sentence(str(caught.value))
    assert torch.equal(flashmoe.fused_moe(**good), expected)


@pytest.mark.parametrize("wrong, expert_map, message", [
    (3, [1, -1, 0], r"^topk_ids.5..1. is 3, wanted -1 .masked. or 0..2, as expert_map has 3 entries: "),
    (2**40, [1, -1, 0], r"^topk_ids.5..1. is 1099511627776, wanted -1 .masked. or 0..2, "),
    (-2, [1, -1, 0], r"^topk_ids.5..1. is -2, wanted"),
    (0, [1, -1, 6], r"^expert_map.2. is 6, wanted -1 .another rank's. or 0..5, as w13 has 6 experts"),
    (0, [1, -1, -3], r"^expert_map.2. is -3, wanted"),
])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_ids_and_entries_of_a_map_out_of_range_are_told_as_given(is_one_sentence, compiled, wrong, expert_map, message):
    x, w13, w2, weights, _ = make()
    ids = torch.arange(TOKENS * TOP_K).reshape(TOKENS, TOP_K) % 3
    ids[5, 1] = wrong
    call = torch.compile(flashmoe.fused_moe, fullgraph=True, backend="eager") if compiled else flashmoe.fused_moe
    with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
        call(x, w13, w2, weights, ids, gate_up_order="gate_up", expert_map=torch.tensor(expert_map))
    assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("wrong", [2**32, 2**40, -2**40, 2**31])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_ids_that_int32_does_not_hold_are_told_as_given(is_one_sentence, compiled, wrong):
    x, w13, w2, weights, ids = make()
    ids = ids.long()
    ids[5, 1] = wrong
    layer = flashmoe.Layer(flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS, dtype="fp32"), w13, w2)
    number = torch_ops.register_layer(layer)
    for call in (lambda: flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up"),
                 lambda: torch_ops.run_layer(number, x, weights, ids)):
        with pytest.raises(flashmoe.InvalidArgument, match=rf"^topk_ids.5..1. is {wrong}, wanted -1 ") as caught:
            torch.compile(call, fullgraph=True, backend="eager")() if compiled else call()
        assert is_one_sentence(str(caught.value))


@pytest.mark.parametrize("change, error, message", [
    (dict(top_k=2.0), TypeError, r"top_k \(2.0\) must be an integer"),
    (dict(top_k="2"), TypeError, "top_k"),
    (dict(function=None), ValueError, "function .None. must be one of softmax_topk"),
    (dict(renormalize="yes"), TypeError, "renormalize"),
    (dict(scaling_factor="1"), TypeError, "scaling_factor"),
    (dict(num_groups=1.0), TypeError, "num_groups"),
    (dict(jitter_epsilon=None), TypeError, "jitter_epsilon"),
])
def test_settings_of_a_router_are_checked_alike_for_every_library(is_one_sentence, change, error, message):
    logits = torch.randn(TOKENS, EXPERTS)
    settings = {"top_k": numpy.int64(2), "scaling_factor": numpy.float32(1), "renormalize": numpy.True_}
    assert torch.equal(flashmoe.route(logits, **settings)[1], flashmoe.route(logits, 2, renormalize=True)[1])
    for given in (logits, logits.numpy()):
        if given is not logits and "renormalize" in change:
            continue  # any integer there
        with pytest.raises(error, match=message) as caught:
            flashmoe.route(given, **{"top_k": 2, **change})
        assert isinstance(caught.value, flashmoe.InvalidArgument) and is_one_sentence(str(caught.value))


def test_a_wrong_id_of_one_thread_fails_no_other_thread_s_call():
    x, w13, w2, weights, ids = make()
    wrong = ids.clone()
    wrong[3, 1] = 99
    good = flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up")

    def right():
        return all(torch.equal(flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up"), good)
                   for _ in range(60))

    def culprit():
        for _ in range(20):
            with pytest.raises(flashmoe.InvalidArgument, match="is 99"):
                flashmoe.fused_moe(x, w13, w2, weights, wrong, gate_up_order="gate_up")
        return True

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        assert all(call.result() for call in [threads.submit(work) for work in (right, right, right, culprit)])


def test_a_call_that_finds_the_heap_dead_gets_another():
    x, w13, w2, weights, ids = make()
    problem = flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS, dtype="fp32")
    pool, used = layer_pool.LayerPool(), []

    def call(layer):
        used.append(layer)
        if len(used) in (2, 3):  # another thread's calls come before
            with pytest.raises(flashmoe.InvalidArgument):
                layer.forward(x, weights, torch.full_like(ids, EXPERTS))
        return layer.forward(x, weights, ids)

    expected = pool.run(problem, "cpu", w13, w2, call)
    assert torch.equal(pool.run(problem, "cpu", w13, w2, call), expected)
    assert len({id(layer) for layer in used}) == 3 and used[0] is used[1]

    def never(layer):
        with pytest.raises(flashmoe.InvalidArgument):
            layer.forward(x, weights, torch.full_like(ids, EXPERTS))
        return layer.forward(x, weights, ids)

    with pytest.raises(flashmoe.Timeout, match="heap is dead"):
        pool.run(problem, "cpu", w13, w2, never)


def test_the_order_has_no_default():
    with pytest.raises(TypeError, match="gate_up_order"):
        flashmoe.fused_moe(*make())


def test_more_routes_than_experts_of_the_rank():
    x, w13, w2, weights, ids = make()
    expert_map = torch.tensor([0, -1, -1, -1, -1, -1])
    with pytest.raises(flashmoe.InvalidArgument, match="more than 1 routes"):
        flashmoe.fused_moe(x, w13[:1], w2[:1], weights, torch.zeros_like(ids), gate_up_order="gate_up",
                           expert_map=expert_map)


OPERATORS = torch.ops.flashmoe
FUSED_ARGUMENTS = ("silu", True, False, 1.702, 7.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operators_pass_opcheck(dtype):  # COMPILE1
    x, w13, w2, weights, ids = make(dtype)
    torch.library.opcheck(OPERATORS.fused_moe.default, (x, w13, w2, weights, ids, None, None, *FUSED_ARGUMENTS))
    bias = torch.randn(EXPERTS, 2 * INTERMEDIATE), torch.randn(EXPERTS, HIDDEN)
    torch.library.opcheck(OPERATORS.fused_moe.default, (x, w13, w2, weights, ids, *bias, *FUSED_ARGUMENTS))
    settings = (2, "softmax_topk", True, 1.0, 1, 1, 0.01)
    torch.library.opcheck(OPERATORS.route_logits.default, (torch.randn(TOKENS, EXPERTS), None, *settings))
    expert_map = torch.tensor([1, -1, 0, -1, -1, 1])
    torch.library.opcheck(OPERATORS.local_ids.default, (ids.long().T.contiguous().T, expert_map, 2))
    torch.library.opcheck(OPERATORS.route.default, (x, torch.randn(EXPERTS, HIDDEN), None, None, *settings))
    problem = flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS, dtype=torch_arguments.DTYPES[dtype])
    layer = flashmoe.Layer(problem, w13, w2)
    number = torch_ops.register_layer(layer)
    assert torch.equal(torch_ops.run_layer(number, x, weights, ids),
                       flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up"))
    torch.library.opcheck(OPERATORS.layer_forward.default, (x, weights, ids, number))
    del layer
    with pytest.raises(flashmoe.InvalidArgument, match="is gone"):
        torch_ops.run_layer(number, x, weights, ids)


@pytest.mark.parametrize("hidden", [64, 2880])
def test_compiled_equals_eager(hidden):  # COMPILE1
    torch.manual_seed(3)
    w13, w2 = torch.randn(4, 32, hidden) / hidden**0.5, torch.randn(4, hidden, 16) / 4
    gate = torch.randn(hidden, 4)
    expert_map = torch.tensor([2, 0, -1, 1])

    def block(x):
        weights, ids = flashmoe.route(x @ gate, 2, renormalize=True)
        y = flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="interleaved", expert_map=expert_map)
        return x + y

    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    for tokens in (8, 3, 1):
        x = torch.randn(tokens, hidden)
        assert torch.equal(compiled(x), block(x))


@pytest.mark.parametrize("dynamic", [True, None])
@pytest.mark.parametrize("values", [(1.5, 1.25, 0.75), (1, 2, 3)], ids=["floats", "integers"])
def test_compiled_equals_eager_while_sizes_and_numbers_change(dynamic, values):  # COMPILE1
    _, w13, w2, *_ = make()

    def route(logits, scale):
        return flashmoe.route(logits, TOP_K, scaling_factor=scale)

    def block(x, weights, ids, alpha):
        return flashmoe.fused_moe(x, w13, w2, weights, ids, gate_up_order="gate_up", activation="swiglu_clamped",
                                  swiglu_alpha=alpha, swiglu_limit=2 * alpha)

    torch._dynamo.reset()
    compiled_route, compiled = (torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
                                for function in (route, block))
    for tokens, value in zip((9, 4, 30), values):
        logits, x = torch.randn(tokens, EXPERTS), torch.randn(tokens, HIDDEN)
        weights, ids = route(logits, value)
        for ours, theirs in zip(compiled_route(logits, value), (weights, ids)):
            assert torch.equal(ours, theirs)
        y = block(x, weights, ids, value)
        assert torch.equal(compiled(x, weights, ids, value), y)
        assert not torch.equal(block(x, weights, ids, value + 0.5), y)  # so the number matters


def test_negative_views_are_not_read_as_they_lie(is_one_sentence):
    x, w13, w2, topk_weights, topk_ids = make()
    layer = flashmoe.Layer(flashmoe.Problem(hidden=HIDDEN, intermediate=INTERMEDIATE, num_experts=EXPERTS, top_k=TOP_K,
                                            max_tokens=TOKENS, dtype="fp32"), w13, w2)
    with pytest.raises(flashmoe.InvalidArgument, match="x is a negative view.*resolve_neg") as caught:
        layer.forward(torch._neg_view(x), topk_weights, topk_ids)
    assert is_one_sentence(str(caught.value))
    logits = torch.randn(TOKENS, EXPERTS)
    for ours, theirs in zip(flashmoe.route(torch._neg_view(logits), TOP_K), flashmoe.route(-logits, TOP_K)):
        assert torch.equal(ours, theirs)
    good = dict(w13=w13, w2=w2, topk_weights=topk_weights, topk_ids=topk_ids, gate_up_order="gate_up")
    assert torch.equal(flashmoe.fused_moe(torch._neg_view(x), **good), flashmoe.fused_moe(-x, **good))
