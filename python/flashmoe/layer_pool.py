"""Layers of one rank for calls that bring their weights along."""

import collections
import contextlib
import os
import threading
from typing import Any, Iterator

from . import layer as layers
from .errors import InvalidArgument
from .group import Group

_MOST_THREADS = 16
_WORK_OF_THREADS = 1 << 26  # multiplications of a call from which on waking other threads pays


class LayerPool:
    """Makes a layer for a call and lets go of it afterwards, so that no weights are kept.

    Heaps are, because making one costs more than a call: those of the most recent problems that fit into `most_bytes`
    together, and the last one anyway.
    """

    def __init__(self, most_bytes: int = 1 << 30):
        self._most_bytes = most_bytes
        self._groups: dict[tuple[str, int], Group] = {}
        # By problem and device: a layer that is there to keep its heap alive, and its bytes. The last used comes last.
        self._keepers: collections.OrderedDict[tuple, tuple[layers.Layer, int]] = collections.OrderedDict()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def layer(self, problem: layers.Problem, device: Any, up: Any, down: Any, **biases: Any) -> Iterator[layers.Layer]:
        """A layer over these weights; `device` is a torch device. Raises InvalidArgument for one that is not taken."""
        layer = layers.Layer(problem, up, down, group=self._group_of(problem, device), **biases)
        key = (problem, device.type)
        try:
            yield layer
        except BaseException:
            with self._lock:
                self._keepers.pop(key, None)  # its heap may be dead
            raise
        self._keep_heap(key, layer)

    def bytes_kept(self) -> int:
        """Of the heaps; one that several problems share counts for each."""
        with self._lock:
            return sum(num_bytes for _, num_bytes in self._keepers.values())

    def clear(self) -> None:
        """Gives all memory back."""
        with self._lock:
            self._keepers.clear()

    def _group_of(self, problem: layers.Problem, device: Any) -> Group:
        if device.type == "cuda" and (device.index or 0) != 0:
            raise InvalidArgument(f"hidden_states is on {device}, wanted cuda:0: show the process one GPU by "
                                  "CUDA_VISIBLE_DEVICES")
        work = problem.max_tokens * problem.top_k * problem.hidden * problem.intermediate
        threads = min(len(os.sched_getaffinity(0)), _MOST_THREADS) if work >= _WORK_OF_THREADS else 1
        key = (device.type, threads)
        with self._lock:
            if key not in self._groups:
                self._groups[key] = Group(1, backend=device.type, num_processors=threads, num_threads=threads)
            return self._groups[key]

    def _keep_heap(self, key: tuple, layer: layers.Layer) -> None:
        with self._lock:
            if key in self._keepers:
                self._keepers.move_to_end(key)
                return
            num_bytes = layer.info.heap_bytes + layer.info.local_bytes
            layer.forget_weights()
            self._keepers[key] = layer, num_bytes
            total = sum(kept for _, kept in self._keepers.values())
            while total > self._most_bytes and len(self._keepers) > 1:
                _, (_, freed) = self._keepers.popitem(last=False)
                total -= freed
