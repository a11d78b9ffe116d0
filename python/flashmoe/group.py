"""The ranks that build layers together."""

import ctypes
import uuid
from typing import Any, Literal, Optional

from . import _native, launch
from .errors import FabricError, InvalidArgument, InvalidDType

Backend = Literal["cpu", "cuda"]


class Group:
    """Ranks of this process: all of them are here, and each calls from a thread of its own.

    Args:
        num_ranks: 1..64.
        backend: "cpu" (threads, host memory) or "cuda" (GPUs, device memory).
        first_device: CUDA backend: rank r is on GPU first_device + r, modulo their number.
        num_processors: CPU backend: actors per rank that compute tiles, 1..64.
        num_threads: CPU backend: threads per rank that step its actors, the caller's among them; 0: one an actor.
        deadline_seconds: a call in which no rank (on GPUs: an actor) gets on for so long ends with Timeout.

    Group.join(), from_torch(), from_mpi() and from_launcher() make groups of processes.

    Raises InvalidArgument for options out of range, CudaError when this build or machine cannot run the backend.
    """

    num_ranks: int
    backend: Backend
    rank: Optional[int]
    """This process's rank in a group of processes, None where all ranks are here."""

    def __init__(self, num_ranks: int = 1, *, backend: Backend = "cpu", first_device: int = 0,
                 num_processors: int = 1, num_threads: int = 1, deadline_seconds: float = 30.0):
        options = _options(backend, first_device=first_device, num_processors=num_processors, num_threads=num_threads,
                           deadline_seconds=deadline_seconds)
        handle = _native.Handle("group_create_local", _native.integer("num_ranks", num_ranks), ctypes.byref(options))
        self._set(handle, num_ranks, backend, None)

    def _set(self, handle: _native.Handle, num_ranks: int, backend: Backend, rank: Optional[int]) -> None:
        self._handle, self.num_ranks, self.backend, self.rank = handle, num_ranks, backend, rank

    @classmethod
    def join(cls, group_id: str, rank: int, num_ranks: int, device: int, *, deadline_seconds: float = 30.0,
             meeting_seconds: float = 120.0) -> "Group":
        """One rank in every process of this machine, each with a GPU of its own: returns when all have joined.

        Args:
            group_id: 1..48 printable characters, the same in all of them and no other group's.
            rank: 0..num_ranks-1, one process each.
            num_ranks: how many processes join.
            device: this process's GPU, by its own numbering.
            deadline_seconds: as of Group.
            meeting_seconds: how long processes wait for each other to join and to create a layer.

        Creating a layer is collective then. Raises InvalidArgument for arguments out of range, CudaError without a
        usable GPU or CUDA backend; on all ranks Timeout, naming the ranks that did not come, and FabricError when one
        failed or left, two claim one place or one GPU, or the versions of the library differ.
        """
        options = _options("cuda", deadline_seconds=deadline_seconds, meeting_seconds=meeting_seconds)
        handle = _native.Handle("group_join", str(group_id).encode(), _native.integer("rank", rank),
                                _native.integer("num_ranks", num_ranks), _native.integer("device", device),
                                ctypes.byref(options))
        group = cls.__new__(cls)
        group._set(handle, num_ranks, "cuda", rank)
        return group

    @classmethod
    def from_torch(cls, process_group: Any = None, *, device: Optional[int] = None, **options: float) -> "Group":
        """join() of the processes of a torch.distributed group; None: the default group.

        device: this process's GPU; None: torch's current one, which torch.cuda.set_device() chooses. options: as of
        join(). torch.distributed must be initialised, with any backend: else InvalidArgument. Raises as join(), and
        FabricError on a machine where torch sees no GPU.
        """
        import torch
        import torch.distributed as distributed

        if not distributed.is_initialized():
            raise InvalidArgument("torch.distributed is not initialised: call init_process_group() before, or use "
                                  "Group.from_launcher()")
        rank, num_ranks = distributed.get_rank(process_group), distributed.get_world_size(process_group)
        if num_ranks > 1 and not torch.cuda.is_available():
            raise FabricError(f"the {num_ranks} processes of the group need a GPU each, and torch sees none: run all "
                              "ranks in one process on the CPU, by flashmoe.Group and a thread for each")
        group_id = [uuid.uuid4().hex]
        distributed.broadcast_object_list(group_id, group=process_group, group_src=0)
        device = torch.cuda.current_device() if device is None else device
        return cls.join(group_id[0], rank, num_ranks, device, **options)

    @classmethod
    def from_launcher(cls, *, device: Optional[int] = None, **options: float) -> "Group":
        """join() of the processes that torchrun, mpirun or srun has started, as their environment says.

        Every process calls, and makes its groups in the same order. Arguments as of from_torch(), but that device None
        is get_local_rank().
        """
        rank, num_ranks, local_rank = launch.launched_as()
        device = local_rank if device is None else device
        return cls.join(launch.next_group_id(), rank, num_ranks, device, **options)

    @classmethod
    def from_mpi(cls, communicator: Any, *, device: int, **options: float) -> "Group":
        """join() of the processes of an mpi4py communicator, all on one machine. Arguments as of from_torch()."""
        if not hasattr(communicator, "bcast"):
            raise InvalidDType(f"communicator is a {type(communicator).__name__}, wanted an mpi4py communicator")
        group_id = communicator.bcast(uuid.uuid4().hex, root=0)
        return cls.join(group_id, communicator.Get_rank(), communicator.Get_size(), device, **options)


def rank_in(group: Optional[Group], rank: Optional[int]) -> int:
    """`rank`; where it is None, this process's rank of a group of processes, else 0.

    Raises InvalidDType for what is no group, InvalidArgument for a rank that is none of the group's (None: one rank), or
    another process's.
    """
    if group is not None and not isinstance(group, Group):
        raise InvalidDType(f"group must be a flashmoe.Group, but is a {type(group).__name__}: make one of the ranks, by "
                           "Group(num_ranks) or Group.from_torch()")
    num_ranks, own = (1, None) if group is None else (group.num_ranks, group.rank)
    if rank is None:
        return own or 0
    if not 0 <= _native.integer("rank", rank) < num_ranks:
        raise InvalidArgument(f"rank ({rank}) must be in 0..{num_ranks - 1}, one of the group's")
    if own not in (None, rank):
        raise InvalidArgument(f"rank ({rank}) must be this process's rank in the group ({own}): leave it out")
    return rank


def _options(backend: str, **settings: float) -> _native.GroupOptions:
    options = _native.initialised(_native.GroupOptions, "flashmoe_group_options_init_sized")
    options.backend = _native.number_of(_native.BACKENDS, "backend", backend)
    for name, value in settings.items():
        _native.set_number(options, name, value)
    return options
