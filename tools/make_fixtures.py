#!/usr/bin/env python3
"""Makes small random checkpoints of every family of MoE models with the transformers library, and records what that
library's own MoE block does with them.

    make_fixtures.py [FOLDER]      the committed fixtures; FOLDER defaults to tests/fixtures/checkpoints

A fixture is a folder: config.json and safetensors files as save_pretrained() writes them, and block.safetensors with
  hidden_states  [batch, sequence, hidden]  the block's input, of the checkpoint's type
  router_logits  [tokens, num_experts]      F32
  topk_ids       [tokens, top_k]            I32, in the library's order
  topk_weights   [tokens, top_k]            F32
  output         [batch, sequence, hidden]  F32, of the routed experts alone: shared experts are left out
The library computes in fp32 on the stored values, whatever their type, so that its own rounding in 16 bits is no part of
what is compared. Weights come from a generator whose values are the same on every machine.
"""

import argparse
import dataclasses
import math
import pathlib
import shutil
import zlib

import numpy
import safetensors.torch
import torch
import transformers

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
BLOCK_FILE = "block.safetensors"


@dataclasses.dataclass(frozen=True)
class Family:
    model: str  # class name in transformers
    config: str
    layer: int  # the MoE layer that is recorded
    settings: dict  # on top of SMALL


SMALL = dict(
    vocab_size=16, hidden_size=40, num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=64,
    bos_token_id=0, eos_token_id=1, pad_token_id=2,
)
SMALL_MLA = dict(
    q_lora_rank=8, kv_lora_rank=8, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, num_key_value_heads=2,
)

FAMILIES = {
    "mixtral": Family("MixtralForCausalLM", "MixtralConfig", 1, dict(
        num_hidden_layers=2, head_dim=8, intermediate_size=16, num_local_experts=4, num_experts_per_tok=3)),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", "Qwen2MoeConfig", 1, dict(
        num_hidden_layers=2, head_dim=8, intermediate_size=8, moe_intermediate_size=16, shared_expert_intermediate_size=8,
        num_experts=6, num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[0])),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", "Qwen3MoeConfig", 1, dict(
        num_hidden_layers=2, head_dim=8, intermediate_size=16, moe_intermediate_size=16, num_experts=8,
        num_experts_per_tok=3, norm_topk_prob=True, decoder_sparse_step=2)),
    "olmoe": Family("OlmoeForCausalLM", "OlmoeConfig", 0, dict(
        num_hidden_layers=1, head_dim=8, intermediate_size=24, num_experts=6, num_experts_per_tok=3,
        norm_topk_prob=False)),
    "deepseek_v2": Family("DeepseekV2ForCausalLM", "DeepseekV2Config", 1, dict(
        **SMALL_MLA, num_hidden_layers=2, first_k_dense_replace=1, intermediate_size=16, moe_intermediate_size=8,
        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, topk_method="group_limited_greedy", n_group=4,
        topk_group=2, routed_scaling_factor=1.5)),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", "DeepseekV3Config", 1, dict(
        **SMALL_MLA, num_hidden_layers=2, first_k_dense_replace=1, intermediate_size=16, moe_intermediate_size=8,
        n_routed_experts=12, n_shared_experts=1, num_experts_per_tok=3, n_group=3, topk_group=2,
        routed_scaling_factor=2.5, num_nextn_predict_layers=0)),
    "llama4": Family("Llama4ForCausalLM", "Llama4TextConfig", 1, dict(
        num_hidden_layers=2, head_dim=8, intermediate_size=24, intermediate_size_mlp=16, num_local_experts=4,
        num_experts_per_tok=2, interleave_moe_layer_step=2)),
    "gpt_oss": Family("GptOssForCausalLM", "GptOssConfig", 0, dict(
        num_hidden_layers=1, head_dim=8, intermediate_size=24, num_local_experts=6, num_experts_per_tok=3,
        swiglu_limit=1.5, rope_parameters=dict(rope_type="default", rope_theta=10000.0))),
    "phimoe": Family("PhimoeForCausalLM", "PhimoeConfig", 0, dict(
        num_hidden_layers=1, head_dim=8, intermediate_size=24, num_local_experts=6, num_experts_per_tok=2,
        router_jitter_noise=0.2)),
}


@dataclasses.dataclass(frozen=True)
class Fixture:
    family: str
    dtype: str
    fused: bool = False  # with the library's own layout of experts instead of the published one
    max_shard_size: str = "1GB"
    scale: int = 1  # of hidden and intermediate sizes

    @property
    def name(self):
        return f"{self.family}-{self.dtype}" + ("-fused" if self.fused else "")


SHARDED = {"mixtral": "9KB", "qwen3_moe": "16KB", "deepseek_v3": "20KB"}


def fixture_of(family, dtype, **options):
    return Fixture(family, dtype, **{"max_shard_size": SHARDED.get(family, "1GB"), **options})


SEED = 1  # of the committed fixtures
FIXTURES = [fixture_of(family, "bf16") for family in FAMILIES] + [
    fixture_of("mixtral", "fp32"),
    fixture_of("qwen2_moe", "fp16"),
    fixture_of("qwen2_moe", "fp32"),
    fixture_of("qwen3_moe", "fp32"),
    fixture_of("olmoe", "fp32"),
    fixture_of("deepseek_v2", "fp32"),
    fixture_of("deepseek_v3", "fp32"),
    Fixture("mixtral", "fp32", fused=True),
    Fixture("phimoe", "bf16", fused=True),
]


def uniform(seed, name, shape, scale):
    """Values in [-scale, scale) that depend on the arguments alone."""
    generator = numpy.random.Generator(numpy.random.PCG64([seed, zlib.crc32(name.encode())]))
    values = (generator.random(tuple(shape), dtype=numpy.float32) - numpy.float32(0.5)) * numpy.float32(2 * scale)
    return torch.from_numpy(values)


def scale_of(name, shape, config):
    """Variance 1 / fan-in for matrices, so that activations and logits stay of order 1; biases that matter."""
    if name.endswith("e_score_correction_bias"):
        return 0.2  # scores lie in 0..1
    if len(shape) < 2:
        return 0.5
    fan_in = shape[-1]
    if name.endswith("gate_up_proj"):
        fan_in = config.hidden_size
    elif name.endswith("experts.down_proj"):
        fan_in = shape[1] if shape[2] == config.hidden_size else shape[2]
    elif name.endswith("_bias"):  # of all experts
        return 0.5
    return math.sqrt(3 / fan_in)


def make_config(fixture):
    family = FAMILIES[fixture.family]
    settings = {**SMALL, **family.settings}
    for name in settings:
        if name == "hidden_size" or "intermediate_size" in name:
            settings[name] *= fixture.scale
    return getattr(transformers, family.config)(**settings)


def make_checkpoint(fixture, folder, seed):
    """Writes config.json and the model's files."""
    family = FAMILIES[fixture.family]
    config = make_config(fixture)
    model = getattr(transformers, family.model)(config).to(DTYPES[fixture.dtype])
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "rotary_emb" not in name and "inv_freq" not in name:
                tensor.copy_(uniform(seed, name, tensor.shape, scale_of(name, tensor.shape, config)))
    model.save_pretrained(
        folder, max_shard_size=fixture.max_shard_size, save_original_format=not fixture.fused)
    for unneeded in folder.glob("generation_config.json"):
        unneeded.unlink()


class Nothing(torch.nn.Module):
    """Stands in for a shared expert."""

    def forward(self, hidden_states):
        return torch.zeros_like(hidden_states)


def routes_of(router_output):
    """(logits, weights, ids) of any family's router."""
    if len(router_output) == 3:
        return router_output
    scores, logits = router_output  # llama4: sigmoids in the chosen experts' places, zeros elsewhere
    top_k = int((scores[0] != 0).sum())
    ids = torch.topk(logits, top_k, dim=-1).indices
    return logits, scores.gather(1, ids), ids


def run_block(fixture, folder, hidden_states, dtype=torch.float32):
    """What the library's block does with the checkpoint in `folder`, computed in `dtype`."""
    family = FAMILIES[fixture.family]
    model = getattr(transformers, family.model).from_pretrained(
        folder, dtype=dtype, experts_implementation="eager").eval()
    layer = model.model.layers[family.layer]
    block = next(getattr(layer, name) for name in ("mlp", "feed_forward", "block_sparse_moe") if hasattr(layer, name))
    for shared in ("shared_expert", "shared_experts"):
        if hasattr(block, shared):
            setattr(block, shared, Nothing())
    router = block.gate if hasattr(block, "gate") else block.router
    seen = []
    hook = router.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        output = block(hidden_states.to(dtype))
    hook.remove()
    output = output[0] if isinstance(output, tuple) else output
    logits, weights, ids = routes_of(seen[0])
    return {
        "router_logits": logits.float().contiguous(),
        "topk_ids": ids.to(torch.int32).contiguous(),
        "topk_weights": weights.float().contiguous(),
        "output": output.reshape(hidden_states.shape).float().contiguous(),
    }


def make_hidden_states(fixture, seed, batch=2, sequence=10):
    """A block's input of variance 1."""
    shape = (batch, sequence, SMALL["hidden_size"] * fixture.scale)
    return uniform(seed, "hidden_states", shape, math.sqrt(3)).to(DTYPES[fixture.dtype])


def make_fixture(fixture, folder, seed):
    """Makes `folder` anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    make_checkpoint(fixture, folder, seed)
    states = make_hidden_states(fixture, seed)
    block = {"hidden_states": states, **run_block(fixture, folder, states)}
    safetensors.torch.save_file(block, folder / BLOCK_FILE)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("folder", nargs="?", type=pathlib.Path, default=root / "tests/fixtures/checkpoints")
    folder = parser.parse_args().folder
    transformers.utils.logging.disable_progress_bar()
    for fixture in FIXTURES:
        make_fixture(fixture, folder / fixture.name, SEED)
        print(fixture.name)


if __name__ == "__main__":
    main()
