"""What torch modules have in common whose experts are spread over a group."""

import dataclasses
from typing import Optional

import torch

from . import layer as layers
from . import torch_arguments, torch_ops
from .errors import InvalidArgument
from .group import Group, rank_in


class LayerModule(torch.nn.Module):
    """A module whose parameters are a layer's weights from the first call on, and must stay where they are then.

    weight_names: of the parameters that are up and down and, where the problem has biases, up_bias and down_bias.
    _problem: what it computes; the layer takes the type of the parameters and the top_k of the first call.
    """

    weight_names: tuple[str, ...]
    _problem: layers.Problem

    def __init__(self, group: Optional[Group], rank: Optional[int]) -> None:
        super().__init__()
        self.group, self.rank = group, rank_in(group, rank)
        self._layer: Optional[layers.Layer] = None
        self._layer_number = torch.zeros((), dtype=torch.int64, device="cpu")  # of no layer

    def _run_layer(self, hidden_states: torch.Tensor, topk_weights: torch.Tensor,
                   topk_ids: torch.Tensor) -> torch.Tensor:
        """A call of the layer, made at the first one. Raises as check_weights()."""
        if self._layer is None:
            self._make_layer(topk_ids.shape[1])
        return torch_ops.run_layer(self._layer_number, hidden_states, topk_weights, topk_ids)

    @torch.compiler.disable
    def _make_layer(self, top_k: int) -> None:
        """Turns biases of another type into the fp32 that a layer takes."""
        assert self.group is not None
        for name in self.weight_names[2:]:
            bias = getattr(self, name)
            if bias.dtype != torch.float32:
                with torch.inference_mode(False):
                    setattr(self, name, torch.nn.Parameter(bias.detach().float(), requires_grad=bias.requires_grad))
        weights = [getattr(self, name) for name in self.weight_names]
        dtype = torch_arguments.layer_dtype(weights[0].dtype, self.group.backend, f"dtype of {self.weight_names[0]}")
        problem = dataclasses.replace(self._problem, dtype=dtype, top_k=top_k)
        layers.weight_views(problem, self.group.backend, *weights, names=self.weight_names)  # by their names here
        biases = dict(zip(("up_bias", "down_bias"), weights[2:]))
        self._layer = layers.Layer(problem, *weights[:2], **biases, group=self.group, rank=self.rank)
        self._layer_number = torch_ops.register_layer(self._layer, self)

    def check_weights(self) -> None:
        """Raises InvalidArgument where a parameter is not what the layer reads."""
        assert self._layer is not None
        for name, pointer in zip(self.weight_names, self._layer.weights_at()):
            parameter = getattr(self, name)
            torch_arguments.refuse_transforms(parameter)
            if parameter.data_ptr() != pointer:
                raise InvalidArgument(f"{name} is not where it was at the first forward(), and the ranks' layer reads "
                                      "it there: change its values in place, or make a new module on every rank")

    def _apply(self, *arguments, **keywords) -> torch.nn.Module:
        if self._layer is not None:
            raise InvalidArgument("the module's parameters are in use since its first forward(): move or convert it "
                                  "before that")
        return super()._apply(*arguments, **keywords)
