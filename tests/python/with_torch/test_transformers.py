"""Small random transformers models with their experts on flashmoe: the same logits and tokens as without."""

import copy

import make_fixtures
import pytest
import torch
import transformers

import flashmoe
from flashmoe.integrations.transformers import Experts, patch, unpatch

# How far two ways to round in 16 bits may be apart over a whole model (relative L2), and fp32 in another order of sums.
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 1e-2}
FAMILIES = tuple(make_fixtures.FAMILIES)
VOCABULARY = 96


@pytest.fixture(scope="module", autouse=True)
def quiet_library():
    transformers.utils.logging.set_verbosity_error()


def make_model(name, dtype=torch.float32, seed=1):
    """Two layers or one, as the family's fixture has, with weights that keep activations of order 1."""
    family = make_fixtures.FAMILIES[name]
    config = make_fixtures.make_config(make_fixtures.Fixture(name, "fp32", scale=2))
    config.vocab_size = VOCABULARY
    if name == "olmoe":  # it norms whole rows of its heads
        config.head_dim, config.num_key_value_heads = config.hidden_size // config.num_attention_heads, 2
    model = getattr(transformers, family.model)(config).eval()
    with torch.no_grad():
        for parameter_name, parameter in [*model.named_parameters(), *model.named_buffers()]:
            if "rotary_emb" in parameter_name or "inv_freq" in parameter_name or "norm" in parameter_name:
                continue
            scale = make_fixtures.scale_of(parameter_name, parameter.shape, config)
            parameter.copy_(make_fixtures.uniform(seed, parameter_name, parameter.shape, scale))
    return model.to(dtype)


def prompt(seed=1, batch=2, tokens=12):
    return torch.randint(3, VOCABULARY, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def logits_of(model, ids):
    with torch.no_grad():
        return model(ids).logits.double()


def relative_l2(value, expected):
    return float((value - expected).norm() / expected.norm())


def num_patched(model):
    return sum(isinstance(module, Experts) for module in model.modules())


@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_are_the_unpatched_model_s(name, dtype):
    model = make_model(name, dtype)
    expected = logits_of(model, prompt())
    assert patch(model) is model and num_patched(model) >= 1
    assert relative_l2(logits_of(model, prompt()), expected) <= TOLERANCES[dtype]


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_the_unpatched_model_s(name):
    model = make_model(name)
    settings = dict(max_new_tokens=8, min_new_tokens=8, do_sample=False)
    expected = model.generate(prompt(), **settings)
    assert torch.equal(patch(model).generate(prompt(), **settings), expected)


@pytest.mark.parametrize("name", FAMILIES)
def test_unpatching_gives_the_model_back(name):
    model = make_model(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    expected = logits_of(model, prompt())
    unpatch(patch(model))
    assert num_patched(model) == 0
    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    assert torch.equal(logits_of(model, prompt()), expected)


@pytest.mark.parametrize("name", ["mixtral", "deepseek_v3"])
def test_matrices_that_lie_right_are_shared(name):
    model = make_model(name)
    before = {key: value.data_ptr() for key, value in model.state_dict().items()}
    assert {key: value.data_ptr() for key, value in patch(model).state_dict().items()} == before


@pytest.mark.parametrize("name", ["gpt_oss", "llama4"])
def test_matrices_that_do_not_are_freed(name):
    model = make_model(name)
    num_bytes = sum(parameter.nbytes for parameter in model.parameters())
    patch(model)
    assert sum(parameter.nbytes for parameter in model.parameters()) <= 1.02 * num_bytes  # biases in fp32
    originals = [module._original[0] for module in model.modules() if isinstance(module, Experts)]
    assert all(parameter.numel() == 0 for module in originals for parameter in module.parameters())


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "llama4"])
def test_router_logits_are_still_recorded(name):
    model = make_model(name)
    expected = model(prompt(), output_router_logits=True).router_logits
    got = patch(model)(prompt(), output_router_logits=True).router_logits
    assert len(got) == len(expected) >= 1
    for one, other in zip(got, expected):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss", "llama4"])
def test_experts_spread_over_ranks(name, on_ranks):
    whole = make_model(name)
    prompts = [prompt(seed, batch) for seed, batch in ((1, 2), (2, 1))]
    expected = [logits_of(whole, ids) for ids in prompts]
    group = flashmoe.Group(2)
    models = [patch(copy.deepcopy(whole), group=group, rank=rank, max_tokens=24) for rank in range(2)]
    results = on_ranks(2, lambda rank: logits_of(models[rank], prompts[rank]))
    for got, want in zip(results, expected):
        assert relative_l2(got, want) <= 1e-4
    with pytest.raises(flashmoe.InvalidArgument, match="load it anew"):
        unpatch(models[0])
    with pytest.raises(flashmoe.InvalidArgument, match="before that"):
        models[1].bfloat16()


def test_models_that_cannot_be_patched(is_one_sentence):
    dense = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=16, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2))
    model = patch(make_model("mixtral"))
    for arguments, message in (((dense,), "no MoE blocks"), ((model,), "patched already"),
                               ((make_model("mixtral"), flashmoe.Group(2)), "max_tokens")):
        with pytest.raises(flashmoe.InvalidArgument, match=message) as caught:
            patch(arguments[0], group=arguments[1] if len(arguments) > 1 else None)
        assert is_one_sentence(str(caught.value)) or message == "no MoE blocks"


def state_of(model):
    return {name: (value.data_ptr(), value.shape) for name, value in model.state_dict().items()}


@pytest.mark.parametrize("change, arguments, error, message", [
    (None, dict(ranks=2, rank=2), flashmoe.InvalidArgument, r"rank \(2\) must be in 0..1"),
    (None, dict(ranks=2, rank=-1), flashmoe.InvalidArgument, r"rank \(-1\)"),
    (None, dict(ranks=2, rank="0"), flashmoe.InvalidDType, "rank"),
    (None, dict(ranks=3, rank=0), flashmoe.InvalidArgument, "multiple of num_ranks"),
    (None, dict(rank=1), flashmoe.InvalidArgument, r"rank \(1\)"),
    (lambda model: setattr(model.config, "hidden_act", "tanh"), {}, flashmoe.InvalidArgument, "hidden_act"),
    (lambda model: model.to(torch.complex64), {}, flashmoe.InvalidDType, "dtype of down_proj"),
    (lambda model: setattr(model.model.layers[-1].mlp.experts, "down_proj", torch.nn.Parameter(torch.randn(4, 16, 12))),
     {}, flashmoe.InvalidArgument, "intermediate"),
])
def test_a_model_that_cannot_be_patched_stays_as_it_was(is_one_sentence, change, arguments, error, message):
    model = make_model("mixtral")
    if change is not None:
        change(model)
    before = state_of(model)
    group = flashmoe.Group(arguments["ranks"]) if "ranks" in arguments else None
    with pytest.raises(error, match=message) as caught:
        patch(model, group=group, rank=arguments.get("rank"), max_tokens=16)
    assert is_one_sentence(str(caught.value))
    assert state_of(model) == before and num_patched(model) == 0


def test_what_is_no_model_is_told():
    with pytest.raises(flashmoe.InvalidDType, match="model is a NoneType"):
        patch(None)


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_one_layer_of_a_model_is_patched(name):
    model = make_model(name)
    expected = logits_of(model, prompt())
    patch(model.model.layers[0])
    assert num_patched(model) == 1
    assert relative_l2(logits_of(model, prompt()), expected) <= TOLERANCES[torch.float32]


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss"])
def test_experts_that_blocks_share_stay_shared(name):
    model = make_model(name)
    block = model.model.layers[0].mlp
    blocks = torch.nn.ModuleList([block, copy.deepcopy(block)])
    blocks[1].experts = block.experts
    x = torch.randn(1, 5, model.config.hidden_size)

    @torch.no_grad()
    def results():
        both = [each(x) for each in blocks]
        return [y[0] if isinstance(y, tuple) else y for y in both]

    expected = results()
    patch(blocks)
    assert blocks[0].experts is blocks[1].experts and num_patched(blocks) == 1
    assert all(relative_l2(y, want) <= TOLERANCES[torch.float32] for y, want in zip(results(), expected))
    unpatch(blocks)
    assert all(torch.equal(y, want) for y, want in zip(results(), expected))


def test_replaced_experts_of_a_group_are_refused():
    model = patch(make_model("mixtral"), group=flashmoe.Group(1), max_tokens=24)
    logits_of(model, prompt())
    model.load_state_dict({name: value.clone() for name, value in model.state_dict().items()}, assign=True)
    with pytest.raises(flashmoe.InvalidArgument, match="gate_up_proj is not where it was"):
        logits_of(model, prompt())


def test_a_patched_model_refuses_gradients():
    model = patch(make_model("mixtral"))
    with pytest.raises(flashmoe.ForwardOnly):
        model(prompt(), labels=prompt()).loss.backward()


def test_the_integration_needs_no_import_of_its_own(run_python):
    result = run_python("-c", "import flashmoe; print(flashmoe.integrations.transformers.patch.__name__)")
    assert result.stdout.split() == ["patch"], result.stderr
