"""Modules, the page interface and transformers models on a GPU."""

import batches
import pytest
import torch
from batches import EXPERTS, HIDDEN, INTERMEDIATE, TOP_K

import flashmoe


def module(**changes):
    torch.manual_seed(4)
    return flashmoe.MoE(HIDDEN, INTERMEDIATE, EXPERTS, TOP_K, **{"renormalize": True, "device": "cuda", **changes})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_a_module_is_its_router_and_experts(dtype):
    moe = module(dtype=dtype)
    x = batches.batch(30, dtype)[0].reshape(2, 15, HIDDEN)
    with torch.no_grad():
        y = moe(x)
        topk_weights, topk_ids = moe.route(x.reshape(-1, HIDDEN))
        wanted = batches.expected(x.reshape(-1, HIDDEN), moe.w13, moe.w2, topk_weights, topk_ids)
    assert y.shape == x.shape
    batches.assert_right(y.reshape(-1, HIDDEN), wanted)


@torch.no_grad()
def test_a_compiled_module_in_a_graph_of_torch_s_own():
    moe = module()
    compiled = torch.compile(moe, fullgraph=True, backend="aot_eager")
    x = batches.batch(20)[0]
    assert torch.equal(compiled(x), moe(x))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = compiled(x)
    x.copy_(batches.batch(20, seed=8)[0])
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, moe(x))


def test_gradients_are_refused():
    with pytest.raises(flashmoe.ForwardOnly, match="forward only"):
        module()(batches.batch(4)[0]).sum().backward()


@pytest.mark.parametrize("data_type, dtype", [
    (flashmoe.DataType.BF16, torch.bfloat16), (flashmoe.DataType.FP32, torch.float32)])
def test_the_page_interface(data_type, dtype):
    w13, w2 = batches.weights(dtype)
    x = batches.batch(32, dtype)[0]
    stream = torch.cuda.Stream()
    args = flashmoe.InitArgs(
        data_type=data_type, mlp_type=flashmoe.MLPType.GATED, act_type=flashmoe.ActivationType.SILU, tokens_per_rank=32,
        token_dim=HIDDEN, ffn_size=INTERMEDIATE, num_experts=EXPERTS, top_k=TOP_K, device_id=0,
        stream_ptr=stream.cuda_stream, ep_world=1, ep_rank=0)
    flash, router = flashmoe.initialize(args), flashmoe.router.initialize(args)
    counts = torch.full((EXPERTS,), -1, dtype=torch.int32, device="cuda")
    gate = (torch.randn(HIDDEN, EXPERTS, device="cuda") / 16).to(dtype)
    routing = flashmoe.router.RouterForwardArgs(x, gate, counts)
    gate_rows, up_rows = (rows.contiguous() for rows in w13.chunk(2, dim=1))
    moe = flashmoe.MoEForwardArgs(tokens=x, local_expert_up=gate_rows, local_expert_up_v=up_rows, local_expert_down=w2,
                                  moe_out=torch.full_like(x, torch.nan))
    torch.cuda.synchronize()
    for _ in range(2):
        flashmoe.router.forward(router, flash, routing)
        flashmoe.forward(flash, moe)
    stream.synchronize()
    assert counts.sum() == 32 * TOP_K
    batches.assert_right(moe.moe_out, batches.expected(x, w13, w2, *flash.routes))
    flashmoe.finalize(flash)
    flashmoe.router.finalize(router)


@pytest.mark.parametrize("dtype, tolerance", [(torch.bfloat16, 1.5e-2), (torch.float16, 2e-3)], ids=str)
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "olmoe", "deepseek_v3", "gpt_oss", "llama4"])
def test_transformers_models(family, dtype, tolerance):
    pytest.importorskip("transformers")
    from flashmoe.integrations.transformers import patch
    from with_torch.test_transformers import logits_of, make_model, prompt, relative_l2

    model = make_model(family, dtype).cuda()
    wanted = logits_of(model, prompt().cuda())
    assert relative_l2(logits_of(patch(model), prompt().cuda()), wanted) <= tolerance
    tokens = model.generate(prompt().cuda(), max_new_tokens=4, min_new_tokens=4, do_sample=False)
    assert tokens.shape == (2, 16)
