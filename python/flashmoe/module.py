"""The layer as a torch module."""

import dataclasses
import math
from typing import Any, Optional

import torch

from . import layer as layers
from . import _native, routing, torch_arguments, torch_ops
from .errors import InvalidArgument
from .group import Group
from .layer_module import LayerModule


class MoE(LayerModule):
    """A Mixture-of-Experts block: a router and this rank's experts. Runs forward only.

    Args:
        hidden: row length of tokens and results; a multiple of 8.
        intermediate: inner width of an expert; a multiple of 8.
        num_experts: all ranks' together; a multiple of the group's num_ranks.
        top_k: routes a token.
        activation: "silu", "gelu", "gelu_tanh", "relu", "relu2", "identity" or "swiglu_clamped".
        gated: two matrices before the activation instead of one.
        expert_bias: biases on both expert matrices.
        router: rule of the router (Router's functions), or None: the caller brings the routes, and what is the
            router's is left out.
        router_bias, selection_bias: whether the router has them (see Router).
        renormalize, scaling_factor, num_groups, topk_groups: of the router, see Router.
        apply_router_weight_on_input: the weight scales what goes into the activation instead of the result.
        group, rank: the ranks that share the experts, and which of them this is (see Layer); None: this one alone.
        max_tokens: most tokens a rank brings to one call, the same on all ranks; needed with a group.
        device, dtype: of the parameters; bf16, fp16, fp32 or fp64.

    Parameters (E local experts, I intermediate, H hidden): router_weight fp32 [num_experts, H], router_bias and
    router_selection_bias fp32 [num_experts]; w13 [E, 2 * I, H], gate rows first (not gated: [E, I, H]), w2 [E, H, I],
    w13_bias and w2_bias fp32 [E, 2 * I] and [E, H]. Converted ones work, too; biases are used as fp32. With a group the
    experts' must stay where they are once forward() has run: it raises for others, and uses values changed in place.

    Raises InvalidArgument when the sizes or the router's settings break a rule.
    """

    router_weight: Optional[torch.nn.Parameter]
    router_bias: Optional[torch.nn.Parameter]
    router_selection_bias: Optional[torch.nn.Parameter]
    w13: torch.nn.Parameter
    w2: torch.nn.Parameter
    w13_bias: Optional[torch.nn.Parameter]
    w2_bias: Optional[torch.nn.Parameter]

    def __init__(self, hidden: int, intermediate: int, num_experts: int, top_k: int, *,
                 activation: layers.Activation = "silu", gated: bool = True, expert_bias: bool = False,
                 router: Optional[routing.RouterFunction] = "softmax_topk", router_bias: bool = False,
                 selection_bias: bool = False, renormalize: bool = False, scaling_factor: float = 1.0,
                 num_groups: int = 1, topk_groups: int = 1, apply_router_weight_on_input: bool = False,
                 swiglu_alpha: float = 1.702, swiglu_limit: float = 7.0, group: Optional[Group] = None,
                 rank: Optional[int] = None, max_tokens: int = 0, device: Optional[torch.device] = None,
                 dtype: torch.dtype = torch.bfloat16):
        super().__init__(group, rank)
        if group is not None and max_tokens <= 0:
            raise InvalidArgument(f"max_tokens ({max_tokens}) must be above 0 with a group: say how many tokens a rank "
                                  "brings at most, the same on all ranks")
        num_ranks, backend = (1, "cpu") if group is None else (group.num_ranks, group.backend)
        self._problem = layers.Problem(
            hidden=hidden, intermediate=intermediate, num_experts=num_experts, top_k=top_k, max_tokens=max_tokens or 1,
            dtype=torch_arguments.layer_dtype(dtype, backend, "dtype"), num_ranks=num_ranks, activation=activation,
            gated=gated, up_bias=expert_bias, down_bias=expert_bias, weight_on_input=apply_router_weight_on_input,
            swiglu_alpha=swiglu_alpha, swiglu_limit=swiglu_limit)
        self._problem.validate()
        self._router = router
        self._router_settings: dict[str, Any] = dict(
            renormalize=renormalize, scaling_factor=scaling_factor, num_groups=num_groups, topk_groups=topk_groups)
        if router is None:
            _refuse_options(router_bias=router_bias, selection_bias=selection_bias, **self._router_settings)
        else:
            _native.number_of(_native.ROUTER_FUNCTIONS, "router", router)
            routing.Router(num_experts, top_k, function=router, **self._router_settings)  # refuses what breaks a rule
        if selection_bias and router != "sigmoid_grouped":
            raise InvalidArgument(f"selection_bias goes with router 'sigmoid_grouped', got {router!r}: leave it out")

        experts, columns = self._problem.num_local_experts, self._problem.up_columns
        exact = torch.float32
        self._add("router_weight", (num_experts, hidden), device, exact, router is not None)
        self._add("router_bias", (num_experts,), device, exact, router is not None and router_bias)
        self._add("router_selection_bias", (num_experts,), device, exact, router is not None and selection_bias)
        self._add("w13", (experts, columns, hidden), device, dtype)
        self._add("w2", (experts, hidden, intermediate), device, dtype)
        self._add("w13_bias", (experts, columns), device, exact, expert_bias)
        self._add("w2_bias", (experts, hidden), device, exact, expert_bias)
        self.weight_names = ("w13", "w2", "w13_bias", "w2_bias") if expert_bias else ("w13", "w2")
        self.reset_parameters()

    @property
    def problem(self) -> layers.Problem:
        """What the experts compute, in the type that they have now."""
        backend = "cpu" if self.group is None else self.group.backend
        return dataclasses.replace(
            self._problem, dtype=torch_arguments.layer_dtype(self.w13.dtype, backend, "dtype of w13"))

    def _add(self, name: str, shape: tuple[int, ...], device, dtype: torch.dtype, there: bool = True) -> None:
        tensor = torch.nn.Parameter(torch.empty(shape, device=device, dtype=dtype)) if there else None
        self.register_parameter(name, tensor)

    def reset_parameters(self) -> None:
        """Uniform values of variance 1 / fan-in; biases 0."""
        with torch.no_grad():
            for name, parameter in self.named_parameters(recurse=False):
                if not name.endswith("bias"):
                    bound = math.sqrt(3 / parameter.shape[-1])
                    parameter.uniform_(-bound, bound)
                else:
                    parameter.zero_()

    def route(self, hidden_states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(topk_weights fp32, topk_ids int32), both [num_tokens, top_k], of tokens [num_tokens, hidden]."""
        if self._router is None:
            raise InvalidArgument("the module was made without a router: pass topk_weights and topk_ids to forward()")
        return torch_ops.route(hidden_states, self.router_weight, self._problem.top_k, function=self._router,
                               bias=self.router_bias, selection_bias=self.router_selection_bias, **self._router_settings)

    def forward(self, hidden_states: torch.Tensor, topk_weights: Optional[torch.Tensor] = None,
                topk_ids: Optional[torch.Tensor] = None) -> torch.Tensor:
        """The block's result, shaped like hidden_states [..., hidden].

        topk_weights and topk_ids [..., top_k] or [num_tokens, top_k] take the router's place; fused_moe() says what
        they may be. With a group the call is collective: every rank calls. Raises as fused_moe() and Layer.forward().
        """
        problem = self._problem
        torch_arguments.require_torch(hidden_states, "hidden_states")
        if hidden_states.dim() == 0 or hidden_states.shape[-1] != problem.hidden:
            raise InvalidArgument(f"hidden_states has shape {list(hidden_states.shape)}, wanted [..., "
                                  f"{problem.hidden}]")
        tokens = hidden_states.reshape(-1, problem.hidden).contiguous()
        if topk_weights is not None and topk_ids is not None:
            for name, given in (("topk_weights", topk_weights), ("topk_ids", topk_ids)):
                torch_arguments.require_torch(given, name)
                if given.shape not in ((*hidden_states.shape[:-1], problem.top_k), (tokens.shape[0], problem.top_k)):
                    raise InvalidArgument(
                        f"{name} has shape {list(given.shape)}, wanted "
                        f"{[*hidden_states.shape[:-1], problem.top_k]} as hidden_states {list(hidden_states.shape)}")
            topk_weights, topk_ids = (given.reshape(-1, problem.top_k) for given in (topk_weights, topk_ids))
        elif topk_weights is None and topk_ids is None:
            topk_weights, topk_ids = self.route(tokens)
        else:
            raise InvalidArgument("topk_weights and topk_ids go together: pass both, or none for the module's router")
        if self.group is None:
            result = torch_ops.fused_moe(
                tokens, self.w13, self.w2, topk_weights, topk_ids, gate_up_order="gate_up" if problem.gated else None,
                activation=problem.activation, apply_router_weight_on_input=problem.weight_on_input,
                w13_bias=self.w13_bias, w2_bias=self.w2_bias, swiglu_alpha=problem.swiglu_alpha,
                swiglu_limit=problem.swiglu_limit)
        else:
            result = self._run_layer(tokens, topk_weights, topk_ids)
        return result.reshape(hidden_states.shape)

    def extra_repr(self) -> str:
        p = self._problem
        return (f"hidden={p.hidden}, intermediate={p.intermediate}, num_experts={p.num_experts}, top_k={p.top_k}, "
                f"activation={p.activation}, router={self._router}, rank={self.rank} of {p.num_ranks}")


def _refuse_options(**of_a_router: Any) -> None:
    """Raises InvalidArgument for those that a module without a router was given."""
    defaults = MoE.__init__.__kwdefaults__
    given = [name for name, value in of_a_router.items() if value != defaults[name]]
    if given:
        raise InvalidArgument(f"{' and '.join(given)} must be left out with router=None: name the router, or apply them "
                              "to the routes that forward() is given")
