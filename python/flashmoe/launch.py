"""What launchers (torchrun, mpirun, srun) tell the processes that they start, by environment variables."""

import hashlib
import itertools
import os

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH
    ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
)
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID",
)
_meetings = itertools.count()


def launched_as() -> tuple[int, int, int]:
    """(rank, number of ranks, rank on this machine) as torchrun, mpirun or srun say it; (0, 1, 0) without them."""
    for rank, num_ranks, local_rank in _RANK_VARIABLES:
        if rank in os.environ and num_ranks in os.environ:
            return int(os.environ[rank]), int(os.environ[num_ranks]), int(os.environ.get(local_rank, 0))
    return 0, 1, 0


def get_local_rank() -> int:
    """This process's place on its machine: the GPU to use."""
    return launched_as()[2]


def next_group_id() -> str:
    """The n-th call gives the n-th name, the same in all processes of one launch and in no other launch's.

    A launcher that names its job by none of the known variables is known by its process, the parent of all ranks.
    """
    job = [f"{name}={os.environ[name]}" for name in _JOB_VARIABLES if name in os.environ] or [f"parent={os.getppid()}"]
    return hashlib.sha256("\n".join([*job, f"meeting={next(_meetings)}"]).encode()).hexdigest()[:40]
