"""Every option of flashmoe.MoE, alone and over ranks, against a plain computation in fp64."""

import pytest
import torch
from activations import ACTIVATIONS

import flashmoe

HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, TOKENS = 64, 48, 8, 2, 24
CLAMPED = dict(activation="swiglu_clamped")
GROUPED = dict(router="sigmoid_grouped", num_groups=4, topk_groups=4)
LIMITED = dict(router="softmax_group_limited", num_groups=4, topk_groups=4)
CASES = [  # what both modules have, and the option whose effect is looked for
    *(({}, dict(activation=name)) for name in ACTIVATIONS if name != "silu"),
    *((dict(gated=False), dict(activation=name)) for name in ACTIVATIONS if name != "silu"),
    ({}, CLAMPED),
    (CLAMPED, dict(swiglu_alpha=0.75)),
    (CLAMPED, dict(swiglu_limit=0.5)),
    ({}, dict(expert_bias=True)),
    (CLAMPED, dict(expert_bias=True)),
    ({}, dict(apply_router_weight_on_input=True)),
    (dict(gated=False, expert_bias=True), dict(apply_router_weight_on_input=True)),
    *((dict(router=router), dict(router_bias=True))
      for router in ("softmax_topk", "topk_softmax", "sigmoid_topk", "sigmoid_grouped")),
    *(({}, dict(router=router)) for router in ("topk_softmax", "sigmoid_topk", "sigmoid_grouped")),
    ({}, dict(renormalize=True)),
    *((dict(router=router), dict(scaling_factor=2.5))  # SEM3, SEM4
      for router in ("softmax_topk", "topk_softmax", "sigmoid_topk", "sigmoid_grouped", "softmax_group_limited")),
    (dict(renormalize=True), dict(scaling_factor=2.5)),
    *((grouped, dict(topk_groups=1)) for grouped in (GROUPED, LIMITED)),
    (GROUPED, dict(topk_groups=2)),
    *((dict(grouped, topk_groups=1), dict(num_groups=2)) for grouped in (GROUPED, LIMITED)),
    (GROUPED, dict(selection_bias=True)),
    (dict(GROUPED, topk_groups=2), dict(selection_bias=True)),
]


def make(options, **group):
    """A module whose parameters have values that every option shows in, the same for the same options."""
    module = flashmoe.MoE(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, **options, **group, dtype=torch.float32)
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            values = torch.randn(EXPERTS, *parameter.shape[1:], generator=random)
            values /= 1 if name.endswith("bias") else parameter.shape[-1] ** 0.5
            first = (module.rank or 0) * parameter.shape[0] if name.startswith("w") else 0
            parameter.copy_(values[first:first + parameter.shape[0]])
    return module


def keep_groups(scores, num_groups, topk_groups, best_of):
    """-inf outside of each token's best groups, by the sum of a group's best scores."""
    groups = scores.unflatten(1, (num_groups, -1))
    best = groups.topk(best_of, dim=2)[0].sum(2).topk(topk_groups, dim=1)[1]
    dropped = torch.ones(groups.shape[:2], dtype=torch.bool).scatter(1, best, False)
    return groups.masked_fill(dropped.unsqueeze(2), -torch.inf).flatten(1)


def routes(module, x, router="softmax_topk", router_bias=False, selection_bias=False, renormalize=False,
           scaling_factor=1.0, num_groups=1, topk_groups=1, **_):
    logits = x @ module.router_weight.double().T
    if router_bias:
        logits = logits + module.router_bias.double()
    if router in ("sigmoid_grouped", "sigmoid_topk"):
        scores = torch.sigmoid(logits)
    else:
        scores = torch.softmax(logits, dim=1)
    choice = scores + module.router_selection_bias.double() if selection_bias else scores
    if router in ("sigmoid_grouped", "softmax_group_limited"):
        choice = keep_groups(choice, num_groups, topk_groups, best_of=2 if router == "sigmoid_grouped" else 1)
    ids = choice.topk(TOP_K, dim=1)[1]
    weights = torch.softmax(logits.gather(1, ids), dim=1) if router == "topk_softmax" else scores.gather(1, ids)
    if renormalize:
        weights = weights / weights.sum(1, keepdim=True)
    return weights * scaling_factor, ids


def reference(module, x, **options):
    """What MoE's options say, from its parameters and the options that are named alone."""
    return experts_of(module, x.double(), *routes(module, x.double(), **options), **options)


def experts_of(module, x, topk_weights, topk_ids, activation="silu", gated=True, expert_bias=False,
               apply_router_weight_on_input=False, swiglu_alpha=1.702, swiglu_limit=7.0, **_):
    y = torch.zeros_like(x)
    for expert in range(EXPERTS):
        weight = (topk_weights * (topk_ids == expert)).sum(1, keepdim=True)
        columns = x @ module.w13[expert].double().T
        if apply_router_weight_on_input:
            columns = columns * weight
        if expert_bias:
            columns = columns + module.w13_bias[expert].double()
        if activation == "swiglu_clamped":
            gate, up = columns[:, :INTERMEDIATE].clamp(max=swiglu_limit), columns[:, INTERMEDIATE:]
            inner = gate * torch.sigmoid(swiglu_alpha * gate) * (up.clamp(-swiglu_limit, swiglu_limit) + 1)
        elif gated:
            inner = ACTIVATIONS[activation](columns[:, :INTERMEDIATE]) * columns[:, INTERMEDIATE:]
        else:
            inner = ACTIVATIONS[activation](columns)
        result = inner @ module.w2[expert].double().T
        if expert_bias:
            result = result + module.w2_bias[expert].double()
        chosen = (topk_ids == expert).any(1, keepdim=True)
        y += chosen * result if apply_router_weight_on_input else weight * result
    return y


def relative_l2(value, expected):
    return float((value.double() - expected).norm() / expected.norm())


def name_of(case):
    return ", ".join(f"{name}={value}" for name, value in case.items())


@pytest.mark.parametrize("common, option", CASES, ids=name_of)
@torch.no_grad()
def test_an_option_does_what_it_says(on_ranks, common, option):
    options = {**common, **option}
    module = make(options)
    x = torch.randn(TOKENS, HIDDEN, generator=torch.Generator().manual_seed(6))
    expected = reference(module, x, **options)
    assert relative_l2(reference(module, x, **common), expected) > 0.01  # the option shows
    assert relative_l2(module(x), expected) <= 1e-5

    group = flashmoe.Group(2)

    @torch.no_grad()
    def work(rank):
        return make(options, group=group, rank=rank, max_tokens=TOKENS)(x[rank::2])

    for rank, y in enumerate(on_ranks(2, work)):
        assert relative_l2(y, expected[rank::2]) <= 1e-5
