"""Layers over NumPy arrays, against a naive reference; nothing here needs torch."""

import time

import numpy
import pytest
import reference

import flashmoe

TYPES = {"fp64": (numpy.float64, 1e-13), "fp32": (numpy.float32, 1e-5), "fp16": (numpy.float16, 8e-4)}


def make_experts(rng, dtype, experts=8, intermediate=24, hidden=32, gated=True):
    up = rng.standard_normal((experts, intermediate * (2 if gated else 1), hidden)) / hidden**0.5
    down = rng.standard_normal((experts, hidden, intermediate)) / intermediate**0.5
    return up.astype(dtype), down.astype(dtype)


def make_tokens(rng, dtype, tokens=21, experts=8, top_k=3, hidden=32):
    x = rng.standard_normal((tokens, hidden)).astype(dtype)
    weights = rng.random((tokens, top_k), dtype=numpy.float32)
    ids = rng.integers(-1, experts, (tokens, top_k), dtype=numpy.int32)
    return x, weights, ids


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("activation", reference.ACTIVATIONS)
def test_results_are_the_reference_s(name, gated, activation):
    dtype, tolerance = TYPES[name]
    rng = numpy.random.default_rng(1)
    up, down = make_experts(rng, dtype, gated=gated)
    x, weights, ids = make_tokens(rng, dtype)
    problem = flashmoe.Problem(32, 24, 8, 3, 64, dtype=name, activation=activation, gated=gated)
    before = x.copy()
    y = flashmoe.Layer(problem, up, down).forward(x, weights, ids)
    assert y.dtype == dtype and y.shape == x.shape
    assert numpy.array_equal(x, before)
    assert reference.relative_l2(y, reference.layer(x, up, down, weights, ids, activation, gated)) <= tolerance


@pytest.mark.parametrize("num_tokens", [(5, 9), (0, 7), (0, 0), (1, 0)])
def test_ranks_share_the_experts(on_ranks, num_tokens):
    rng = numpy.random.default_rng(2)
    up, down = make_experts(rng, numpy.float32)
    batches = [make_tokens(rng, numpy.float32, tokens) for tokens in num_tokens]
    problem = flashmoe.Problem(32, 24, 8, 3, 16, dtype="fp32", num_ranks=2)
    group = flashmoe.Group(2)

    def work(rank):
        mine = slice(4 * rank, 4 * rank + 4)
        layer = flashmoe.Layer(problem, up[mine], down[mine], group=group, rank=rank)
        return [layer.forward(*batches[rank]) for _ in range(3)]

    for (x, weights, ids), results in zip(batches, on_ranks(2, work)):
        expected = reference.layer(x, up, down, weights, ids)
        for y in results:
            assert y.shape == expected.shape
            assert numpy.array_equal(y, results[0])
            assert len(x) == 0 or reference.relative_l2(y, expected) <= 1e-5


def test_biases_are_added():  # SEM7: weights of zero leave the weighted path of the biases
    up_bias = numpy.stack([numpy.full(48, e + 1, numpy.float32) for e in range(4)])
    down_bias = numpy.stack([numpy.full(32, 10 * e, numpy.float32) for e in range(4)])
    problem = flashmoe.Problem(32, 24, 4, 1, 4, dtype="fp32", activation="identity", up_bias=True, down_bias=True)
    up, down = numpy.zeros((4, 48, 32), numpy.float32), numpy.zeros((4, 32, 24), numpy.float32)
    down[:, :, 0] = 1
    layer = flashmoe.Layer(problem, up, down, up_bias=up_bias, down_bias=down_bias)
    ids = numpy.arange(4, dtype=numpy.int32)[:, None]
    y = layer.forward(numpy.ones((4, 32), numpy.float32), numpy.full((4, 1), 0.5, numpy.float32), ids)
    for e in range(4):
        assert numpy.all(y[e] == 0.5 * ((e + 1) ** 2 + 10 * e))


def test_changed_weights_are_seen_by_the_next_call():
    rng = numpy.random.default_rng(3)
    up, down = make_experts(rng, numpy.float32)
    batch = make_tokens(rng, numpy.float32)
    layer = flashmoe.Layer(flashmoe.Problem(32, 24, 8, 3, 64, dtype="fp32"), up, down)
    before = layer.forward(*batch)
    down *= 2
    assert numpy.array_equal(layer.forward(*batch), 2 * before)


def test_output_may_be_given_and_stats_count():
    rng = numpy.random.default_rng(4)
    up, down = make_experts(rng, numpy.float32)
    x, weights, ids = make_tokens(rng, numpy.float32)
    layer = flashmoe.Layer(flashmoe.Problem(32, 24, 8, 3, 64, dtype="fp32"), up, down)
    out = numpy.full_like(x, numpy.nan)
    assert layer.forward(x, weights, ids, out=out) is out
    assert numpy.array_equal(out, layer.forward(x, weights, ids))
    stats = layer.run(x, weights, ids, out)
    assert stats.epoch == 2 and stats.wire_bytes == 0 and stats.kernel_launches == 0
    assert stats.wire_form in ("counted", "lined") and stats.wall_us > 0
    info = layer.info
    assert info.engine.startswith("cpu") and info.heap_bytes > 0 and info.plan


def test_layers_of_one_group_are_closed_one_by_one():  # EXIT, INIT6: one goes, the others and new ones go on
    rng = numpy.random.default_rng(5)
    up, down = make_experts(rng, numpy.float32)
    batch = make_tokens(rng, numpy.float32)
    problem = flashmoe.Problem(32, 24, 8, 3, 64, dtype="fp32")
    group = flashmoe.Group()
    first, second = (flashmoe.Layer(problem, up, down, group=group) for _ in range(2))
    expected = second.forward(*batch)
    first.close()
    first.close()
    with pytest.raises(flashmoe.InvalidArgument, match="closed"):
        first.forward(*batch)
    assert numpy.array_equal(second.forward(*batch), expected)
    del group, first
    assert numpy.array_equal(second.forward(*batch), expected)
    with flashmoe.Layer(problem, up, down) as third:
        assert numpy.array_equal(third.forward(*batch), expected)


def test_a_process_ends_well_with_layers_open(run_python):  # EXIT1
    result = run_python(
        "-c",
        "import numpy, flashmoe\n"
        "up, down = numpy.ones((2, 16, 8), numpy.float32), numpy.ones((2, 8, 8), numpy.float32)\n"
        "layer = flashmoe.Layer(flashmoe.Problem(8, 8, 2, 1, 4, dtype='fp32'), up, down)\n"
        "one = numpy.ones((1, 1), numpy.float32)\n"
        "print(layer.forward(numpy.ones((1, 8), numpy.float32), one, one.astype(numpy.int32))[0, 0])\n")
    assert (result.returncode, result.stderr) == (0, "")
    assert float(result.stdout) > 0


def test_a_group_that_waits_too_long_says_for_whom():
    rng = numpy.random.default_rng(6)
    up, down = make_experts(rng, numpy.float32)
    problem = flashmoe.Problem(32, 24, 8, 3, 16, dtype="fp32", num_ranks=2)
    group = flashmoe.Group(2, deadline_seconds=0.2)
    layers = [flashmoe.Layer(problem, up[mine], down[mine], group=group, rank=rank)
              for rank, mine in enumerate((slice(0, 4), slice(4, 8)))]
    with pytest.raises(flashmoe.Timeout, match="rank 1"):
        layers[0].forward(*make_tokens(rng, numpy.float32, 4))
    assert issubclass(flashmoe.Timeout, TimeoutError)


def test_a_layer_s_deadline_takes_the_place_of_the_group_s():
    rng = numpy.random.default_rng(6)
    up, down = make_experts(rng, numpy.float32)
    group = flashmoe.Group(2, deadline_seconds=30)
    layers = [flashmoe.Layer(flashmoe.Problem(32, 24, 8, 3, 16, dtype="fp32", num_ranks=2), up[mine], down[mine],
                             group=group, rank=rank, deadline_seconds=0.2)
              for rank, mine in enumerate((slice(0, 4), slice(4, 8)))]
    start = time.monotonic()
    with pytest.raises(flashmoe.Timeout, match="rank 1"):
        layers[0].forward(*make_tokens(rng, numpy.float32, 4))
    assert 0.2 <= time.monotonic() - start < 15


def test_ranks_that_disagree_are_told(is_one_sentence):  # INIT7
    up, down = make_experts(numpy.random.default_rng(7), numpy.float32)
    group = flashmoe.Group(2)
    for rank, max_tokens in enumerate((16, 32)):
        problem = flashmoe.Problem(32, 24, 8, 3, max_tokens, dtype="fp32", num_ranks=2)
        if rank == 0:
            kept = flashmoe.Layer(problem, up[:4], down[:4], group=group, rank=0)
        else:
            with pytest.raises(flashmoe.FabricError, match="16.*32") as caught:
                flashmoe.Layer(problem, up[4:], down[4:], group=group, rank=1)
            assert is_one_sentence(str(caught.value))
    assert kept.info.heap_bytes > 0


def test_models_by_name_and_by_config(tmp_path):
    assert "qwen3-30b-a3b" in flashmoe.preset_names()
    problem = flashmoe.preset("qwen3-30b-a3b", max_tokens=256, num_ranks=4)
    assert (problem.hidden, problem.intermediate, problem.num_experts, problem.top_k) == (2048, 768, 128, 8)
    assert (problem.num_ranks, problem.dtype, problem.activation, problem.gated) == (4, "bf16", "silu", True)
    assert flashmoe.preset("gpt-oss-20b", max_tokens=1).activation == "swiglu_clamped"
    with pytest.raises(flashmoe.InvalidArgument, match="qwen3-30b-a3b"):
        flashmoe.preset("qwen3", max_tokens=1)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(flashmoe.InvalidArgument, match="model_type"):
        flashmoe.load_config(tmp_path, max_tokens=1)
