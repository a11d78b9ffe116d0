"""Layers of one rank for calls that bring their weights along."""

import collections
import os
import threading
from typing import Any, Callable, Optional, TypeVar

from . import layer as layers
from .errors import Timeout
from .group import Group

_MOST_THREADS = 16
_WORK_OF_THREADS = 1 << 26  # multiplications of a call from which on waking other threads pays
_MOST_LAYERS = 256
_MOST_ATTEMPTS = 16  # of a call that finds its heap dead, while other threads' calls keep failing

_Result = TypeVar("_Result")


class _Kept:
    """Layers of one problem on one device, which keep its heap alive, by where their weights lie. The last used come last."""

    def __init__(self) -> None:
        self.layers: collections.OrderedDict[tuple[int, ...], layers.Layer] = collections.OrderedDict()
        self.num_bytes = 0
        self.captured = False  # by a CUDA graph, which replays on the heap


class LayerPool:
    """Finds or makes a layer for a call.

    A layer is known by where its weights lie and keeps none of them alive: what lies there is the caller's during the
    call. Heaps are kept, because making one costs more than a call: those of the most recent problems that fit into
    `most_bytes` together, the last one anyway, and those that a CUDA graph uses.
    """

    def __init__(self, most_bytes: int = 1 << 30):
        self._most_bytes = most_bytes
        self._groups: dict[tuple[str, int], Group] = {}
        self._kept: collections.OrderedDict[tuple[layers.Problem, str], _Kept] = collections.OrderedDict()
        self._replayed: list[_Kept] = []  # no longer offered to calls, but graphs may still run on them
        self._lock = threading.Lock()

    def run(self, problem: layers.Problem, place: str, up: Any, down: Any, call: Callable[[layers.Layer], _Result], *,
            captured: bool = False, **biases: Any) -> _Result:
        """call(layer) of a layer over these weights, on "cpu", "cuda:0", ...; `captured`: a CUDA graph is to use it.

        Where the call finds the heap dead, another thread's has failed on it and has raised why: it is made again on a
        new heap. What else it raises is raised.
        """
        problem.validate()
        views = layers.weight_views(problem, place, up, down, **biases)
        key, where = (problem, place), tuple(view.pointer for view in views.values())
        attempts = 0
        while True:
            with self._lock:
                kept = self._kept.get(key)
                layer = kept.layers.get(where) if kept else None
            if layer is None:
                layer = layers.Layer(problem, up, down, group=self._group_of(problem, place), **biases)
            try:
                result = call(layer)
            except BaseException as error:
                self._drop(key, kept)  # its heap may be dead
                attempts += 1
                if attempts == _MOST_ATTEMPTS or not _found_dead(error):
                    raise
            else:
                self._keep(key, where, layer, captured)
                return result

    def bytes_kept(self) -> int:
        """Of the heaps; one that several problems share counts for each."""
        with self._lock:
            return sum(kept.num_bytes for kept in self._kept.values())

    def clear(self) -> None:
        """Gives all memory back."""
        with self._lock:
            self._kept.clear()
            self._replayed.clear()

    def _group_of(self, problem: layers.Problem, place: str) -> Group:
        backend, _, device = place.partition(":")
        if backend == "cuda":
            number = int(device)
        else:
            work = problem.max_tokens * problem.top_k * problem.hidden * problem.intermediate
            number = min(len(os.sched_getaffinity(0)), _MOST_THREADS) if work >= _WORK_OF_THREADS else 1
        with self._lock:
            if (backend, number) not in self._groups:
                self._groups[backend, number] = (
                    Group(1, backend="cuda", first_device=number) if backend == "cuda" else
                    Group(1, num_processors=number, num_threads=number))
            return self._groups[backend, number]

    def _drop(self, key: tuple[layers.Problem, str], failed: Optional[_Kept]) -> None:
        with self._lock:
            if failed is not None and self._kept.get(key) is failed:  # else another thread has dropped it before
                del self._kept[key]
                if failed.captured:
                    self._replayed.append(failed)

    def _keep(self, key: tuple[layers.Problem, str], where: tuple[int, ...], layer: layers.Layer, captured: bool) -> None:
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            kept.captured |= captured
            if where not in kept.layers:
                kept.num_bytes = layer.info.heap_bytes + layer.info.local_bytes
                layer.forget_weights()
                kept.layers[where] = layer
            kept.layers.move_to_end(where)
            if len(kept.layers) > _MOST_LAYERS:
                kept.layers.popitem(last=False)
            self._let_go()

    def _let_go(self) -> None:
        total = sum(kept.num_bytes for kept in self._kept.values())
        for key in [key for key, kept in self._kept.items() if not kept.captured and key != next(reversed(self._kept))]:
            if total <= self._most_bytes:
                return
            total -= self._kept.pop(key).num_bytes


def _found_dead(error: BaseException) -> bool:
    """Whether a call failed because one before it had: it has not begun then."""
    return isinstance(error, Timeout) and str(error).startswith("this layer's heap is dead")
