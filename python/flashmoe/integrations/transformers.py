"""The MoE layers of transformers models on flashmoe: patch(model), unpatch(model).

Families: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE, DeepSeek-V2, DeepSeek-V3, Phi-3.5-MoE, gpt-oss, Llama 4. A block's
router and its shared expert stay the model's own; the routed experts are replaced.
"""

import dataclasses
import types
from typing import Any, Optional

import torch

from .. import layer as layers
from .. import torch_ops
from ..errors import InvalidArgument
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
    order: torch_ops.GateUpOrder = "gate_up"
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

    def __init__(self, original: Any, hidden_act: str, group: Optional[Group], rank: int,
                 max_tokens: int):
        super().__init__()
        form = _FORMS[type(original).__name__]
        self._original = [original]  # not a submodule
        self._form, self._group, self._rank, self._max_tokens = form, group, rank, max_tokens
        self._num_ranks = 1 if group is None else group.num_ranks
        self._activation: layers.Activation = "swiglu_clamped" if form.clamped else _activation(hidden_act)
        self._alpha: float = original.alpha if form.clamped else 1.702
        self._limit: float = original.limit if form.clamped else 7.0
        if original.num_experts % self._num_ranks:
            raise InvalidArgument(f"num_experts ({original.num_experts}) must be a multiple of the group's num_ranks "
                                  f"({self._num_ranks})")
        self._copied = form.transposed or self._num_ranks > 1
        if not self._copied:
            self.gate_up_proj, self.down_proj = original.gate_up_proj, original.down_proj
            return
        with torch.no_grad():
            mine = slice(*(original.num_experts // self._num_ranks * index for index in (rank, rank + 1)))
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
        up_bias, down_bias = (self.gate_up_proj_bias, self.down_proj_bias) if self._form.bias else (None, None)
        if self._group is None:
            return torch_ops.fused_moe(
                hidden_states, self.gate_up_proj, self.down_proj, topk_weights, topk_ids, gate_up_order="gate_up",
                activation=self._activation, apply_router_weight_on_input=self._form.in_block, w13_bias=up_bias,
                w2_bias=down_bias, swiglu_alpha=self._alpha, swiglu_limit=self._limit)
        if self._layer is None:
            problem = self._problem(topk_ids.shape[1])
            self._make_layer(problem, self.gate_up_proj, self.down_proj, up_bias=up_bias, down_bias=down_bias,
                             group=self._group, rank=self._rank)
        return torch_ops.run_layer(self._layer_number, hidden_states, topk_weights, topk_ids)

    def _problem(self, top_k: int) -> layers.Problem:
        experts, hidden, intermediate = self.down_proj.shape
        return layers.Problem(
            hidden=hidden, intermediate=intermediate, top_k=top_k, num_experts=experts * self._num_ranks,
            max_tokens=self._max_tokens, num_ranks=self._num_ranks,
            dtype=torch_ops.layer_dtype(self.down_proj.dtype, "cpu" if self._group is None else self._group.backend,
                                       "dtype of down_proj"),
            activation=self._activation, up_bias=self._form.bias, down_bias=self._form.bias,
            weight_on_input=self._form.in_block, swiglu_alpha=self._alpha, swiglu_limit=self._limit)

    def restore(self) -> Any:
        """The model's own experts, with their matrices back."""
        if self._num_ranks > 1:
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

    Raises InvalidArgument for a model without MoE blocks that are known, or patched already.
    """
    if group is not None and max_tokens <= 0:
        raise InvalidArgument(f"max_tokens ({max_tokens}) must be above 0 with a group: say how many tokens one "
                              "forward() has at most, the same on all ranks")
    if any(isinstance(module, Experts) for module in model.modules()):
        raise InvalidArgument("the model is patched already: unpatch it first")
    blocks: list[Any] = [
        module for module in model.modules() if type(getattr(module, "experts", None)).__name__ in _FORMS]
    if not blocks:
        raise InvalidArgument(f"{type(model).__name__} has no MoE blocks that can be replaced: wanted one of "
                              f"{', '.join(_FORMS)} in it")
    for block in blocks:
        block.experts = Experts(block.experts, _hidden_act(model), group, rank_in(group, rank), max_tokens)
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


def _hidden_act(model: Any) -> str:
    config = model.config.get_text_config()
    return getattr(config, "hidden_act", "silu")


def _activation(hidden_act: str) -> layers.Activation:
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
