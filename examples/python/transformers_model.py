"""A (small, random) Qwen3-MoE model with its experts on flashmoe: the same tokens as without."""

import torch
import transformers

from flashmoe.integrations.transformers import patch

torch.manual_seed(0)
model = transformers.Qwen3MoeForCausalLM(transformers.Qwen3MoeConfig(
    vocab_size=64, hidden_size=64, intermediate_size=64, moe_intermediate_size=32, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, num_experts=8, num_experts_per_tok=2, max_position_embeddings=64,
    bos_token_id=0, eos_token_id=1, pad_token_id=2)).eval()
prompt = torch.tensor([[5, 17, 31]])
settings = dict(max_new_tokens=6, min_new_tokens=6, do_sample=False)
expected = model.generate(prompt, **settings)
tokens = patch(model).generate(prompt, **settings)
assert torch.equal(tokens, expected)
print(tokens.tolist())
