"""The MoE layers of transformers models on flashmoe: patch(model), unpatch(model).

Families: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, DeepSeek-V2, DeepSeek-V3, Phi-3.5-MoE, gpt-oss, Llama 4. A block's
router and its shared expert stay the model's own; the routed experts are replaced.
"""

import dataclasses
import types
from typing import Any, Optional

import torch

from .. import layer as layers
from .. import torch_arguments, torch_ops
from ..errors import InvalidArgument, InvalidDType
from ..group import Group, rank_in
from ..layer_module import LayerModule

_ACTIVATIONS: dict[str, layers.Activation] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu", "relu2": "relu2", "linear": "identity",
}


@dataclasses.dataclass(frozen=True)
class _Form:
    """How a class of experts keeps its matrices."""

    transposed: bool = False  # [E, H, 2 * I] and [E, I, H]
    order: torch_arguments.GateUpOrder = "gate_up"
    bias: bool = False
    clamped: bool = False  # gpt-oss' activation, with alpha and limit
    in_block: bool = False  # the block itself calls the experts in a way of its own (Llama 4)


_FORMS = {
    "MixtralExperts": _Form(), "Qwen2MoeExperts": _Form(), "Qwen3MoeExperts": _Form(), "OlmoeExperts": _Form(),
    "DeepseekV2Experts": _Form(), "DeepseekV3Experts": _Form(), "PhimoeExperts": _Form(),
    "GptOssExperts": _Form(transposed=True, order="interleaved", bias=True, clamped=True),
    "Llama4TextExperts": _Form(transposed=True, in_block=True),
}


class Experts(LayerModule):
    """Takes the place of a model's routed experts.

    Where the model's matrices are stored as flashmoe wants them, they are used as they lie, under their names; where
    they are not (gpt-oss, Llama 4), or the experts are spread over ranks, they are copied and the model's are freed.
    """

    gate_up_proj: torch.nn.Parameter
    down_proj: torch.nn.Parameter
    gate_up_proj_bias: torch.nn.Parameter
    down_proj_bias: torch.nn.Parameter

    def __init__(self, original: Any, problem: layers.Problem, group: Optional[Group], rank: int):
        """problem: as problem_of() says it."""
        super().__init__(group, rank)
        form = _FORMS[type(original).__name__]
        self._original = [original]  # not a submodule
        self._form, self._problem = form, problem
        self.weight_names = ("gate_up_proj", "down_proj")
        if form.bias:
            self.weight_names += ("gate_up_proj_bias", "down_proj_bias")
        self._copied = form.transposed or problem.num_ranks > 1
        if not self._copied:
            self.gate_up_proj, self.down_proj = original.gate_up_proj, original.down_proj
            return
        with torch.no_grad():
            mine = slice(*(problem.num_local_experts * index for index in (self.rank, self.rank + 1)))
            up, down = original.gate_up_proj[mine], original.down_proj[mine]
            if form.transposed:
                up, down = up.transpose(1, 2), down.transpose(1, 2)
            self.gate_up_proj = _parameter(torch_ops.gate_first(up, form.order))
            self.down_proj = _parameter(down)
            if form.bias:
                bias = torch_ops.gate_first(original.gate_up_proj_bias[mine], form.order)
                self.gate_up_proj_bias = _parameter(bias.float())
                self.down_proj_bias = _parameter(original.down_proj_bias[mine].float())
        self._types = {name: parameter.dtype for name, parameter in original.named_parameters(recurse=False)}
        for parameter in original.parameters(recurse=False):
            parameter.data = parameter.data.new_empty(0)

    def forward(self, hidden_states: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor) -> torch.Tensor:
        """[num_tokens, hidden]: the weighted sum of each token's experts."""
        problem = self._problem
        if self.group is not None:
            return self._run_layer(hidden_states, topk_weights, topk_ids)
        up_bias, down_bias = (self.gate_up_proj_bias, self.down_proj_bias) if self._form.bias else (None, None)
        return torch_ops.fused_moe(
            hidden_states, self.gate_up_proj, self.down_proj, topk_weights, topk_ids, gate_up_order="gate_up",
            activation=problem.activation, apply_router_weight_on_input=problem.weight_on_input, w13_bias=up_bias,
            w2_bias=down_bias, swiglu_alpha=problem.swiglu_alpha, swiglu_limit=problem.swiglu_limit)

    def restore(self) -> Any:
        """The model's own experts, with their matrices back."""
        if self._problem.num_ranks > 1:
            raise InvalidArgument("this model has only its rank's experts: load it anew instead of unpatching it")
        original = self._original[0]
        if self._copied:
            for name, parameter in self.named_parameters(recurse=False):
                value = parameter.detach()
                if name.startswith("gate_up"):
                    value = _undo_gate_first(value, self._form.order)
                if self._form.transposed and value.dim() == 3:
                    value = value.transpose(1, 2)
                getattr(original, name).data = value.to(self._types[name]).contiguous()
        return original


def patch(model: torch.nn.Module, *, group: Optional[Group] = None, rank: Optional[int] = None,
          max_tokens: int = 0) -> torch.nn.Module:
    """Replaces the routed experts of every MoE block of a transformers model, in place, and returns the model.

    Args:
        model: of one of the module's families, on the CPU or a GPU, in bf16, fp16 or fp32.
        group: ranks that share the experts, each with a patched model of its own; every forward() of the model is
            collective then: the ranks make the same number, with any number of tokens. None: all experts are here.
        rank: which of them this is (see Layer).
        max_tokens: with a group, most tokens (batch times sequence) of one forward(), the same on all ranks.

    Raises InvalidArgument (InvalidDType), with the model as it was, for one without MoE blocks that are known, patched
    already, with experts that cannot run here, and for a rank that is none of the group's.
    """
    if not isinstance(model, torch.nn.Module):
        raise InvalidDType(f"model is a {type(model).__name__}, wanted a transformers model")
    if group is not None and max_tokens <= 0:
        raise InvalidArgument(f"max_tokens ({max_tokens}) must be above 0 with a group: say how many tokens one "
                              "forward() has at most, the same on all ranks")
    rank = rank_in(group, rank)
    if any(isinstance(module, Experts) for module in model.modules()):
        raise InvalidArgument("the model is patched already: unpatch it first")
    blocks: list[Any] = [
        module for module in model.modules() if type(getattr(module, "experts", None)).__name__ in _FORMS]
    if not blocks:
        raise InvalidArgument(f"{type(model).__name__} has no MoE blocks that can be replaced: wanted one of "
                              f"{', '.join(_FORMS)} in it")
    problems = [problem_of(block.experts, model, group, max_tokens) for block in blocks]  # before anything is freed
    made: dict[Any, Experts] = {}  # blocks may share their experts
    for block, problem in zip(blocks, problems):
        original = block.experts
        if original not in made:
            made[original] = Experts(original, problem, group, rank)
        block.experts = made[original]
        if block.experts._form.in_block:
            block.forward = types.MethodType(_llama4_forward, block)
    return model


def unpatch(model: torch.nn.Module) -> torch.nn.Module:
    """Undoes patch(), in place, and returns the model. Raises InvalidArgument for one that is spread over ranks."""
    blocks: list[Any] = [module for module in model.modules() if isinstance(getattr(module, "experts", None), Experts)]
    for block in blocks:
        block.experts = block.experts.restore()
        vars(block).pop("forward", None)
    return model


def _llama4_forward(block: Any, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Of a Llama 4 block: scores of the experts that a token did not choose are 0."""
    hidden_states = hidden_states.reshape(-1, block.hidden_dim)
    scores, logits = block.router(hidden_states)
    topk_ids = torch.topk(logits, block.top_k, dim=1).indices
    routed = block.experts(hidden_states, topk_ids, scores.gather(1, topk_ids))
    return block.shared_expert(hidden_states) + routed, logits


def problem_of(original: Any, model: torch.nn.Module, group: Optional[Group], max_tokens: int) -> layers.Problem:
    """What a block's experts compute, with top 1, for the router says how many there are. Raises as patch()."""
    form = _FORMS[type(original).__name__]
    experts, outer, inner = original.down_proj.shape
    if form.transposed:
        outer, inner = inner, outer
    problem = layers.Problem(
        hidden=outer, intermediate=inner, top_k=1, num_experts=experts, max_tokens=max_tokens or 1,
        num_ranks=1 if group is None else group.num_ranks,
        dtype=torch_arguments.layer_dtype(original.down_proj.dtype, "cpu", "dtype of down_proj"),
        activation="swiglu_clamped" if form.clamped else _activation(original, model), up_bias=form.bias,
        down_bias=form.bias, weight_on_input=form.in_block, swiglu_alpha=original.alpha if form.clamped else 1.702,
        swiglu_limit=original.limit if form.clamped else 7.0)
    problem.validate()
    return problem


def _activation(original: Any, model: Any) -> layers.Activation:
    """Of the experts' own config where they keep one: a part of a model need not have it."""
    config = getattr(original, "config", None) or getattr(model, "config", None)
    if config is None:
        raise InvalidArgument(f"{type(model).__name__} has no config that says its hidden_act: patch the whole model")
    hidden_act = getattr(config.get_text_config(), "hidden_act", "silu")
    if hidden_act not in _ACTIVATIONS:
        raise InvalidArgument(f"hidden_act ({hidden_act!r}) of the model must be one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[hidden_act]


def _parameter(value: torch.Tensor) -> torch.nn.Parameter:
    """A copy, row-major."""
    return torch.nn.Parameter(value.detach().clone(memory_format=torch.contiguous_format), requires_grad=False)


def _undo_gate_first(value: torch.Tensor, order: str) -> torch.Tensor:
    if order == "gate_up":
        return value
    half = value.shape[1] // 2
    return torch.stack([value[:, :half], value[:, half:]], dim=2).reshape(value.shape)
