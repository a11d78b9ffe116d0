"""Tensors made of a caller's, in the form that a layer or a router takes."""

from typing import Sequence

import torch


class Packed:
    """One row-major tensor, of `sources` one after the other in dimension 1; of their type, or in fp32.

    A single source of that form is taken as it lies, and changes of its values are seen at once. Else the tensor is a
    copy, which copy_changes() brings up to date.
    """

    whole: torch.Tensor
    copied: bool

    def __init__(self, sources: Sequence[torch.Tensor], *, fp32: bool = False):
        # Detached ones keep the memory, whatever becomes of the caller's: nothing else can come to lie there.
        self._sources = [source.detach() for source in sources]
        self._forms = [_form(source) for source in self._sources]
        self._versions: list[int | None] = []
        first = self._sources[0]
        dtype = torch.float32 if fp32 else first.dtype
        self.copied = len(sources) > 1 or first.dtype != dtype or not first.is_contiguous()
        if not self.copied:
            self.whole = first
            return
        columns = sum(source.shape[1] for source in sources)
        with torch.inference_mode(False):  # a tensor of inference mode could not be written later
            self.whole = torch.empty((first.shape[0], columns, *first.shape[2:]), dtype=dtype, device=first.device)
        self.copy_changes(sources)

    def is_of(self, sources: Sequence[torch.Tensor]) -> bool:
        """Whether `sources` lie where those that it was made of lie."""
        return [_form(source) for source in sources] == self._forms

    def copy_changes(self, sources: Sequence[torch.Tensor]) -> None:
        """Copies `sources` again where torch has counted a change since the last time, or counts none for them."""
        if not self.copied:
            return
        versions = [None if source.is_inference() else source._version for source in sources]
        if None in versions or versions != self._versions:
            with torch.no_grad():
                start = 0
                for source in sources:
                    self.whole.narrow(1, start, source.shape[1]).copy_(source)
                    start += source.shape[1]
            self._versions = versions


def _form(tensor: torch.Tensor) -> tuple:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
