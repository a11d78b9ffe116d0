"""A naive MoE layer and naive routers, in fp64 NumPy."""

import math

import numpy

erf = numpy.vectorize(math.erf)

ACTIVATIONS = {
    "silu": lambda x: x / (1 + numpy.exp(-x)),
    "gelu": lambda x: x * (1 + erf(x / math.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x * (1 + numpy.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: numpy.maximum(x, 0),
    "relu2": lambda x: numpy.maximum(x, 0) ** 2,
    "identity": lambda x: x,
}


def expert(x, up, down, activation, gated):
    columns = up @ x
    if not gated:
        return down @ ACTIVATIONS[activation](columns)
    gate, up_part = numpy.split(columns, 2)
    return down @ (ACTIVATIONS[activation](gate) * up_part)


def layer(x, up, down, weights, ids, activation="silu", gated=True):
    """y [T, H] of x [T, H], up [E, C, H] (gate rows first), down [E, H, I]; ids -1: no expert."""
    x, up, down = (array.astype(numpy.float64) for array in (x, up, down))
    y = numpy.zeros_like(x)
    for token, (row_weights, row_ids) in enumerate(zip(weights, ids)):
        for weight, index in zip(row_weights, row_ids):
            if index >= 0:
                y[token] += float(weight) * expert(x[token], up[index], down[index], activation, gated)
    return y


def softmax(x):
    powers = numpy.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def sigmoid(x):
    return 1 / (1 + numpy.exp(-x))


def largest(scores, count):
    return numpy.argsort(-scores, axis=-1, kind="stable")[..., :count]


def keep_groups(scores, num_groups, topk_groups, best_of):
    """Scores outside each token's best groups become -inf; a group's rank is the sum of its best_of best scores."""
    groups = scores.reshape(len(scores), num_groups, -1)
    group_scores = numpy.sort(groups, axis=-1)[..., -best_of:].sum(-1)
    kept = numpy.full_like(groups, -numpy.inf)
    for token, chosen in enumerate(largest(group_scores, topk_groups)):
        kept[token, chosen] = groups[token, chosen]
    return kept.reshape(scores.shape)


def relative_l2(value, reference):
    value, reference = (numpy.asarray(array, dtype=numpy.float64) for array in (value, reference))
    return numpy.linalg.norm(value - reference) / numpy.linalg.norm(reference)
