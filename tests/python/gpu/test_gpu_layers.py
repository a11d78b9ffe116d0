"""fused_moe and layers on GPU tensors, against the CPU in fp64."""

import gc
import os
import weakref

import batches
import pytest
import torch
from batches import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K, TOLERANCES

import flashmoe


def problem(tokens, dtype="bf16", **changes):
    return flashmoe.Problem(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, tokens, dtype=dtype, **changes)


@pytest.mark.parametrize("tokens", [1, 37, 600])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_results_are_the_reference_s(dtype, tokens):
    w13, w2 = batches.weights(dtype)
    x, topk_weights, topk_ids = batches.batch(tokens, dtype)
    y = flashmoe.fused_moe(x, w13, w2, topk_weights, topk_ids, gate_up_order="gate_up")
    assert y.dtype == dtype and y.device == x.device and y.is_contiguous()
    batches.assert_right(y, batches.expected(x, w13, w2, topk_weights, topk_ids))
    for _ in range(3):  # DET1
        assert torch.equal(flashmoe.fused_moe(x, w13, w2, topk_weights, topk_ids, gate_up_order="gate_up"), y)


def test_types_of_equal_size_take_turns_on_one_heap():
    """Equal layers of bf16 and fp16 have one geometry, and so one heap: each still runs as its own type."""
    calls = []
    for dtype in (torch.bfloat16, torch.float16):
        w13, w2 = batches.weights(dtype)
        x, *routes = batches.batch(37, dtype)
        calls.append(((x, w13, w2, *routes), batches.expected(x, w13, w2, *routes)))
    for _ in range(2):
        for arguments, expected in calls:
            batches.assert_right(flashmoe.fused_moe(*arguments, gate_up_order="gate_up"), expected)


@pytest.mark.parametrize("activation, gated", [
    ("silu", False), ("gelu", True), ("gelu_tanh", True), ("relu", True), ("relu2", False), ("identity", True)])
def test_every_activation(activation, gated):
    w13, w2 = batches.weights(gated=gated)
    x, *routes = batches.batch(50)
    y = flashmoe.fused_moe(x, w13, w2, *routes, activation=activation, gate_up_order="gate_up" if gated else None)
    batches.assert_right(y, batches.expected(x, w13, w2, *routes, activation=activation))


@pytest.mark.parametrize("order", ["up_gate", "interleaved"])
def test_every_order_with_biases_masks_and_other_types(order):
    w13, w2 = batches.weights()
    x, topk_weights, topk_ids = batches.batch(64)
    topk_ids[::3, 1] = -1
    biases = dict(w13_bias=torch.randn(EXPERTS, 2 * INTERMEDIATE, device="cuda"),
                  w2_bias=torch.randn(EXPERTS, HIDDEN, device="cuda"))
    options = dict(gate_up_order=order, apply_router_weight_on_input=True, **biases)
    y = flashmoe.fused_moe(x, w13, w2, topk_weights.bfloat16(), topk_ids.long(), **options)
    batches.assert_right(y, batches.expected(x, w13, w2, topk_weights.bfloat16(), topk_ids, **options))


def test_maps_of_experts_give_partial_sums():
    w13, w2 = batches.weights()
    x, topk_weights, topk_ids = batches.batch(40)
    total = torch.zeros(40, HIDDEN, dtype=torch.float64)
    for mine in (slice(0, 4), slice(4, 8)):
        expert_map = torch.full((EXPERTS,), -1, dtype=torch.int32, device="cuda")
        expert_map[mine] = torch.arange(4, dtype=torch.int32, device="cuda")
        part = flashmoe.fused_moe(x, w13[mine], w2[mine], topk_weights, topk_ids, gate_up_order="gate_up",
                                  expert_map=expert_map)
        total += part.cpu().double()
    assert float((total - batches.expected(x, w13, w2, topk_weights, topk_ids)).norm() / total.norm()) <= 8e-3


def test_no_tokens_are_no_work():
    w13, w2 = batches.weights()
    y = flashmoe.fused_moe(*(t[:0] if i == 0 else t for i, t in enumerate((batches.batch(4)[0], w13, w2))),
                           *(t[:0] for t in batches.batch(4)[1:]), gate_up_order="gate_up")
    assert y.shape == (0, HIDDEN)


def test_a_call_waits_for_torch_s_current_stream_and_nothing_else():
    w13, w2 = batches.weights()
    x, *routes = batches.batch(32)
    wanted = flashmoe.fused_moe(x, w13, w2, *routes, gate_up_order="gate_up")
    late = torch.zeros_like(x)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        y = flashmoe.fused_moe(late, w13, w2, *routes, gate_up_order="gate_up")
        assert not stream.query()  # it returned before the sleep was over
    stream.synchronize()
    assert torch.equal(y, wanted)


def test_steady_calls_allocate_nothing():  # MEM1
    w13, w2 = batches.weights()
    layer = flashmoe.Layer(problem(64), w13, w2)
    router = flashmoe.Router(EXPERTS, TOP_K, weight=torch.randn(EXPERTS, HIDDEN, device="cuda").bfloat16())
    x, *_ = batches.batch(64)
    out = torch.empty_like(x)

    def step():
        layer.forward(x, *router.route(x), out=out)
        flashmoe.fused_moe(x, w13, w2, *router.route(x), gate_up_order="gate_up")

    for _ in range(3):
        step()
    torch.cuda.synchronize()
    free, reserved = torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()
    for _ in range(50):
        step()
    torch.cuda.synchronize()
    assert (torch.cuda.mem_get_info()[0], torch.cuda.memory_reserved()) == (free, reserved)


def test_no_call_keeps_weights_alive_and_new_ones_at_their_place_are_used():  # MEM2
    w13, w2 = batches.weights()
    kept = weakref.ref(w13.untyped_storage())
    x, *routes = batches.batch(16)
    flashmoe.fused_moe(x, w13, w2, *routes, gate_up_order="gate_up")
    w13.mul_(-1.5)
    y = flashmoe.fused_moe(x, w13, w2, *routes, gate_up_order="gate_up")
    batches.assert_right(y, batches.expected(x, w13, w2, *routes))
    with pytest.raises(flashmoe.InvalidArgument, match="contiguous"):  # the same address, other strides
        flashmoe.fused_moe(x, w13.transpose(1, 2), w2, *routes, gate_up_order="gate_up")
    del w13
    gc.collect()
    assert kept() is None


def test_dlpack_tensors_of_another_library():
    cupy = pytest.importorskip("cupy")
    w13, w2 = batches.weights(torch.float16)
    x, topk_weights, topk_ids = batches.batch(20, torch.float16)
    layer = flashmoe.Layer(problem(20, "fp16"), cupy.from_dlpack(w13), cupy.from_dlpack(w2))
    out = cupy.zeros((20, HIDDEN), cupy.float16)
    torch.cuda.synchronize()
    layer.forward(*(cupy.from_dlpack(tensor) for tensor in (x, topk_weights, topk_ids)), out=out)
    cupy.cuda.Device().synchronize()
    batches.assert_right(torch.from_dlpack(out), batches.expected(x, w13, w2, topk_weights, topk_ids))


def test_run_blocks_and_tells_what_it_did():
    w13, w2 = batches.weights()
    layer = flashmoe.Layer(problem(32), w13, w2)
    x, *routes = batches.batch(32)
    out = torch.empty_like(x)
    stats = layer.run(x, *routes, out)
    assert stats.kernel_launches == 1 and layer.info.device == 0 and layer.info.engine.startswith("cuda-")
    assert torch.equal(out, layer.forward(x, *routes))


def shifted(tensor):
    """A contiguous tensor of the same values, one element off its allocation's alignment."""
    return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view(tensor.shape)


@pytest.mark.parametrize("change, error, message", [
    (dict(x=shifted), flashmoe.InvalidArgument, "x .* must be aligned to 16 bytes"),
    (dict(out=lambda _: shifted(torch.empty(32, HIDDEN, dtype=torch.bfloat16, device="cuda"))), flashmoe.InvalidArgument,
     "y .* must be aligned to 16 bytes"),
    (dict(x=lambda t: t.cpu()), flashmoe.InvalidArgument, "x is on cpu, wanted cuda:0"),
    (dict(topk_ids=lambda t: t.cpu()), flashmoe.InvalidArgument, "topk_ids is on cpu, wanted cuda:0"),
    (dict(x=lambda t: t.float()), flashmoe.InvalidDType, "fp32, wanted bf16"),
    (dict(x=lambda t: t.repeat(1, 2)[:, ::2]), flashmoe.InvalidArgument, "contiguous"),
    (dict(topk_ids=lambda t: t.long()), flashmoe.InvalidDType, "int64, wanted int32"),
    (dict(x=lambda t: t.repeat(3, 1)), flashmoe.InvalidArgument, "shape"),
    (dict(num_tokens=lambda _: torch.tensor([3])), flashmoe.InvalidArgument, "num_tokens is on cpu"),
    (dict(max_tokens=lambda _: 33), flashmoe.InvalidArgument, "max_tokens"),
    (dict(out=lambda _: torch.empty(32, HIDDEN, dtype=torch.bfloat16)), flashmoe.InvalidArgument, "out is on cpu"),
])
def test_calls_that_do_not_fit_leave_the_layer_alive(is_one_sentence, change, error, message):
    w13, w2 = batches.weights()
    layer = flashmoe.Layer(problem(32), w13, w2)
    call = dict(zip(("x", "topk_weights", "topk_ids"), batches.batch(32)))
    wanted = layer.forward(**call)
    with pytest.raises(error, match=message) as caught:
        layer.forward(**{**call, **{name: make(call.get(name)) for name, make in change.items()}})
    assert is_one_sentence(str(caught.value))
    assert torch.equal(layer.forward(**call), wanted)


def test_layers_and_functions_refuse_mixed_devices(is_one_sentence):
    w13, w2 = batches.weights()
    x, *routes = batches.batch(8)
    on_cpu = flashmoe.Layer(problem(8), w13.cpu(), w2.cpu())
    for call in (lambda: on_cpu.forward(x, *routes), lambda: flashmoe.Layer(problem(8), w13, w2.cpu()),
                 lambda: flashmoe.fused_moe(x, w13.cpu(), w2, *routes, gate_up_order="gate_up"),
                 lambda: flashmoe.Layer(problem(8), w13, w2, group=flashmoe.Group(1)),
                 lambda: flashmoe.Layer(problem(8), w13.cpu(), w2.cpu(), group=flashmoe.Group(1, backend="cuda"))):
        with pytest.raises(flashmoe.InvalidArgument, match="is on c") as caught:
            call()
        assert is_one_sentence(str(caught.value))


def test_weights_that_are_not_aligned_are_refused(is_one_sentence):
    w13, w2 = batches.weights()
    for up, down in ((shifted(w13), w2), (w13, shifted(w2))):
        with pytest.raises(flashmoe.InvalidArgument, match="must be aligned to 16 bytes") as caught:
            flashmoe.Layer(problem(8), up, down)
        assert is_one_sentence(str(caught.value))


def test_routes_and_biases_need_no_more_than_the_alignment_of_their_elements():
    w13, w2 = batches.weights()
    biases = [torch.randn(w13.shape[:2], device="cuda"), torch.randn(w2.shape[:2], device="cuda")]
    layers = [flashmoe.Layer(problem(32, up_bias=True, down_bias=True), w13, w2, up_bias=up,
                             down_bias=down) for up, down in (biases, map(shifted, biases))]
    x, *routes = batches.batch(32)
    assert torch.equal(layers[0].forward(x, *routes), layers[1].forward(x, *map(shifted, routes)))


def test_fp32_says_that_it_is_tf32():
    torch.set_float32_matmul_precision("highest")
    w13, w2 = batches.weights(torch.float32)
    x, *routes = batches.batch(8, torch.float32)
    with pytest.raises(flashmoe.InvalidDType, match="tf32"):
        flashmoe.fused_moe(x, w13, w2, *routes, gate_up_order="gate_up")


@pytest.mark.parametrize("expert", [EXPERTS, -2])
def test_an_id_out_of_range_is_raised_by_the_next_call_and_then_forgotten(is_one_sentence, expert):
    w13, w2 = batches.weights()
    x, topk_weights, topk_ids = batches.batch(8)
    bad = topk_ids.clone()
    bad[3, 1] = expert
    flashmoe.fused_moe(x, w13, w2, topk_weights, bad, gate_up_order="gate_up")
    torch.cuda.synchronize()
    with pytest.raises(flashmoe.InvalidArgument, match=str(expert)) as caught:
        flashmoe.fused_moe(x, w13, w2, topk_weights, topk_ids, gate_up_order="gate_up")
    assert is_one_sentence(str(caught.value))
    y = flashmoe.fused_moe(x, w13, w2, topk_weights, topk_ids, gate_up_order="gate_up")
    batches.assert_right(y, batches.expected(x, w13, w2, topk_weights, topk_ids))


def test_check_calls_tells_of_a_finished_call():
    w13, w2 = batches.weights()
    layer = flashmoe.Layer(problem(8), w13, w2)
    x, topk_weights, topk_ids = batches.batch(8)
    layer.forward(x, topk_weights, topk_ids)
    torch.cuda.synchronize()
    layer.check_calls()
    layer.forward(x, topk_weights, topk_ids + EXPERTS)
    torch.cuda.synchronize()
    with pytest.raises(flashmoe.InvalidArgument, match="expert"):
        layer.check_calls()


@pytest.mark.multi_gpu
def test_tensors_of_the_second_gpu():
    w13, w2 = (tensor.to("cuda:1") for tensor in batches.weights())
    x, *routes = (tensor.to("cuda:1") for tensor in batches.batch(40))
    y = flashmoe.fused_moe(x, w13, w2, *routes, gate_up_order="gate_up")
    assert y.device.index == 1
    batches.assert_right(y, batches.expected(x, w13, w2, *routes))
    layer = flashmoe.Layer(problem(40), w13, w2)
    assert layer.info.device == 1
    with pytest.raises(flashmoe.InvalidArgument, match="x is on cuda:0, wanted cuda:1"):
        layer.forward(batches.batch(40)[0], *routes)


@pytest.mark.multi_gpu
def test_memory_is_taken_on_the_gpu_of_the_tensors_alone():  # GROUP3
    w13, w2 = (tensor.to("cuda:1") for tensor in batches.weights())
    x, *routes = (tensor.to("cuda:1") for tensor in batches.batch(40))
    free = [torch.cuda.mem_get_info(gpu)[0] for gpu in range(2)]
    assert torch.cuda.current_device() == 0
    layer = flashmoe.Layer(problem(1 << 16, wave_tokens=1 << 15), w13, w2)
    router = flashmoe.Router(EXPERTS, TOP_K, weight=torch.randn(EXPERTS, HIDDEN, device="cuda:1"))
    layer.forward(x, *routes)
    router.route(x.float())
    flashmoe.fused_moe(x, w13, w2, *routes, gate_up_order="gate_up")
    torch.cuda.synchronize(1)
    assert torch.cuda.current_device() == 0
    taken = [before - torch.cuda.mem_get_info(gpu)[0] for gpu, before in enumerate(free)]
    assert layer.info.heap_bytes >= 64 << 20
    assert taken[1] >= layer.info.heap_bytes and taken[0] <= 4 << 20, taken


def test_ranks_of_one_gpu_on_one_stream_are_refused():
    """The second would begin when the first has ended, which waits for it."""
    w13, w2 = batches.weights()
    gpus = torch.cuda.device_count()
    num_ranks = 2 * gpus  # two a GPU: ranks 0 and `gpus` share the first
    local = EXPERTS // num_ranks
    group = flashmoe.Group(num_ranks, backend="cuda", deadline_seconds=3)
    layers = []
    for rank in range(num_ranks):
        own = (w[rank * local:][:local].to(f"cuda:{rank % gpus}").contiguous() for w in (w13, w2))
        layers.append(flashmoe.Layer(problem(8, num_ranks=num_ranks), *own, group=group, rank=rank))
    x, *routes = batches.batch(8)
    layers[0].forward(x, *routes)
    with pytest.raises(flashmoe.InvalidArgument, match=f"stream of rank {gpus}'s call 0 is that of rank 0's"):
        layers[gpus].forward(x, *routes)
    torch.cuda.synchronize()
    with pytest.raises(flashmoe.Timeout):  # the other ranks never came
        layers[0].check_calls()


def test_a_forked_child_may_drop_the_layers_of_its_parent():
    w13, w2 = batches.weights()
    layer = flashmoe.Layer(problem(8), w13, w2)
    x, *routes = batches.batch(8)
    y = layer.forward(x, *routes).clone()
    child = os.fork()
    if child == 0:
        layer.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert torch.equal(layer.forward(x, *routes), y)
