"""Router functions over NumPy arrays, against their formulas."""

import numpy
import pytest
import reference

import flashmoe

EXPERTS, TOP_K, TOKENS = 12, 3, 40


@pytest.fixture
def logits():
    return numpy.random.default_rng(1).standard_normal((TOKENS, EXPERTS)).astype(numpy.float32)


def expected_routes(function, logits, selection_bias):
    logits = logits.astype(numpy.float64)
    if function == "softmax_topk":
        scores = reference.softmax(logits)
        ids = reference.largest(scores, TOP_K)
        return numpy.take_along_axis(scores, ids, 1), ids
    if function == "topk_softmax":
        ids = reference.largest(logits, TOP_K)
        return reference.softmax(numpy.take_along_axis(logits, ids, 1)), ids
    if function == "sigmoid_topk":
        ids = reference.largest(logits, TOP_K)
        return reference.sigmoid(numpy.take_along_axis(logits, ids, 1)), ids
    if function == "sigmoid_grouped":
        scores = reference.sigmoid(logits)
        ids = reference.largest(reference.keep_groups(scores + selection_bias, 3, 2, best_of=2), TOP_K)
        return numpy.take_along_axis(scores, ids, 1), ids
    scores = reference.softmax(logits)
    ids = reference.largest(reference.keep_groups(scores, 3, 2, best_of=1), TOP_K)
    return numpy.take_along_axis(scores, ids, 1), ids


@pytest.mark.parametrize("renormalize", [False, True])
@pytest.mark.parametrize(
    "function", ["softmax_topk", "topk_softmax", "sigmoid_topk", "sigmoid_grouped", "softmax_group_limited"])
def test_routes_are_the_formula_s(logits, function, renormalize):
    grouped = function in ("sigmoid_grouped", "softmax_group_limited")
    bias = numpy.linspace(-0.3, 0.3, EXPERTS, dtype=numpy.float32) if function == "sigmoid_grouped" else None
    settings = dict(num_groups=3, topk_groups=2) if grouped else {}
    weights, ids = flashmoe.route(logits, TOP_K, function=function, renormalize=renormalize, scaling_factor=2.5,
                                  selection_bias=bias, **settings)
    expected, expected_ids = expected_routes(function, logits, bias)
    if renormalize:
        expected = expected / expected.sum(1, keepdims=True)
    assert ids.dtype == numpy.int32 and weights.dtype == numpy.float32
    assert numpy.array_equal(ids, expected_ids)
    numpy.testing.assert_allclose(weights, 2.5 * expected, rtol=1e-6)


def test_sparsemixer_is_softmaxed_within_its_band():
    # Best logit 1; within 2 * 0.1 relative to the larger of |logit| and the best lie 1.0 and 0.9, then 0.9 alone.
    logits = numpy.array([[1.0, 0.9, 0.1, -2.0]], numpy.float32)
    weights, ids = flashmoe.route(logits, 2, function="sparsemixer", jitter_epsilon=0.1)
    assert ids.tolist() == [[0, 1]]
    numpy.testing.assert_allclose(weights, [[1 / (1 + numpy.exp(-0.1)), 1.0]], rtol=1e-6)


def test_a_router_with_weights_routes_hidden_states():
    rng = numpy.random.default_rng(2)
    weight = rng.standard_normal((EXPERTS, 16)).astype(numpy.float32)
    bias = rng.standard_normal(EXPERTS).astype(numpy.float32)
    x = rng.standard_normal((TOKENS, 16))
    logits = (x @ weight.astype(numpy.float64).T + bias).astype(numpy.float32)
    expected = flashmoe.route(logits, TOP_K)
    weights, ids = flashmoe.Router(EXPERTS, TOP_K, weight=weight, bias=bias).route(x)
    assert numpy.array_equal(ids, expected[1])
    numpy.testing.assert_allclose(weights, expected[0], rtol=1e-5)


def test_scale_is_applied_once(logits):  # SEM3, SEM4
    plain, ids = flashmoe.route(logits, TOP_K)
    scaled, scaled_ids = flashmoe.route(logits, TOP_K, scaling_factor=2.5)
    assert numpy.array_equal(ids, scaled_ids)
    numpy.testing.assert_allclose(scaled, 2.5 * plain, rtol=1e-6)


def test_logits_of_nan_give_ids_in_range(logits):
    logits[3] = numpy.nan
    logits[4, 5] = numpy.nan
    weights, ids = flashmoe.route(logits, TOP_K)
    assert sorted(ids[3]) == [0, 1, 2] and 5 not in ids[4]
    assert numpy.isfinite(weights).all()


@pytest.mark.parametrize("tokens", [0, 1])
def test_few_tokens_are_routed(tokens):  # ZERO5
    weights, ids = flashmoe.route(numpy.ones((tokens, 256), numpy.float32), 8)
    assert weights.shape == ids.shape == (tokens, 8)


@pytest.mark.parametrize("change, message", [
    (dict(function="softmax"), "softmax_topk"),
    (dict(top_k=13), "top_k"),
    (dict(top_k=0), "top_k"),
    (dict(top_k=2.5), "top_k"),
    (dict(scaling_factor=0.0), "scaling_factor"),
    (dict(scaling_factor="x"), "scaling_factor"),
    (dict(function="sigmoid_grouped", num_groups=5), "num_groups"),
    *((dict(function=function, **groups), f"num_groups .* must be 1 with {function}, which has no groups")
      for function in ("softmax_topk", "topk_softmax", "sigmoid_topk")
      for groups in (dict(num_groups=4), dict(num_groups=8, topk_groups=2), dict(topk_groups=2))),
    (dict(function="sparsemixer", top_k=2, num_groups=4), "num_groups .* must be 1 with sparsemixer"),
    (dict(function="sparsemixer", top_k=2, jitter_epsilon=-1.0), "jitter_epsilon .-1. must be a finite number"),
    (dict(jitter_epsilon=-1.0), "jitter_epsilon .-1. goes with router function sparsemixer, got softmax_topk"),
    (dict(selection_bias=numpy.zeros(EXPERTS, numpy.float32)), "selection_bias"),
    (dict(function="sigmoid_grouped", selection_bias=numpy.zeros(3, numpy.float32)), "selection_bias"),
    (dict(logits=numpy.zeros((2, EXPERTS), numpy.float64)), "logits"),
    (dict(logits=numpy.zeros(EXPERTS, numpy.float32)), "logits"),
    (dict(logits=[[1.0]]), "logits"),
    (dict(logits=numpy.zeros((EXPERTS, 4), numpy.float32).T), "contiguous"),
])
def test_bad_input_is_refused_in_a_sentence(logits, is_one_sentence, change, message):
    with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
        flashmoe.route(**{"logits": logits, "top_k": TOP_K, **change})
    assert is_one_sentence(str(caught.value))


def test_routers_of_hidden_states_say_what_they_take(is_one_sentence):
    x = numpy.ones((3, 8), numpy.float32)
    for error, message, call in (
            (flashmoe.InvalidArgument, "make it with weight=", lambda: flashmoe.Router(4, 2).route(x)),
            (flashmoe.InvalidDType, "weight has dtype int8",
             lambda: flashmoe.Router(4, 2, weight=numpy.ones((4, 8), numpy.int8))),
            (flashmoe.InvalidDType, "x has dtype int32",
             lambda: flashmoe.Router(4, 2, weight=numpy.ones((4, 8), numpy.float32)).route(x.astype(numpy.int32)))):
        with pytest.raises(error, match=message) as caught:
            call()
        assert is_one_sentence(str(caught.value))
