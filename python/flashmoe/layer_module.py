"""What torch modules have in common whose experts are spread over a group."""

from typing import Any, Optional

import torch

from . import torch_ops
from .errors import InvalidArgument
from .layer import Layer


class LayerModule(torch.nn.Module):
    """A module whose parameters are a layer's weights from the first call on, and must stay where they are then."""

    def __init__(self) -> None:
        super().__init__()
        self._layer: Optional[Layer] = None
        self._layer_number = torch.zeros((), dtype=torch.int64, device="cpu")  # of no layer

    @torch.compiler.disable
    def _make_layer(self, *arguments: Any, **keywords: Any) -> None:
        """Makes the layer, with Layer's arguments."""
        self._layer = Layer(*arguments, **keywords)
        self._layer_number = torch_ops.register_layer(self._layer)

    def _apply(self, *arguments: Any, **keywords: Any) -> torch.nn.Module:
        if self._layer is not None:
            raise InvalidArgument("the module's parameters are in use since its first forward(): move or convert it "
                                  "before that")
        return super()._apply(*arguments, **keywords)
