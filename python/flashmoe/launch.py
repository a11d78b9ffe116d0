"""What launchers (torchrun, mpirun, srun) tell the processes that they start, by environment variables."""

import hashlib
import itertools
import os

from .errors import InvalidArgument

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE", "LOCAL_RANK"),  # torchrun
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),  # MPICH
    # srun. SLURM_NTASKS is there in the script of an sbatch, too, one process: it says how many srun would start.
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
)
_JOB_VARIABLES = (
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID",
)
_meetings = itertools.count()


def launched_as() -> tuple[int, int, int]:
    """(rank, number of ranks, rank on this machine) as torchrun, mpirun or srun say it; (0, 1, 0) without them.

    Raises InvalidArgument for variables that are no such numbers.
    """
    for names in _RANK_VARIABLES:
        rank, num_ranks, local_rank = names
        if rank in os.environ and num_ranks in os.environ:
            place = _number(rank), _number(num_ranks), _number(local_rank, "0")
            if not 0 <= place[0] < place[1] or place[2] < 0:
                said = ", ".join(f"{name}={os.environ[name]}" for name in names if name in os.environ)
                raise InvalidArgument(f"the environment ({said}) must say a rank below the number of ranks: start the "
                                      "program with a launcher, or unset these variables")
            return place
    return 0, 1, 0


def _number(name: str, default: str = "") -> int:
    value = os.environ.get(name, default)
    try:
        return int(value)
    except ValueError:
        raise InvalidArgument(f"{name} ({value!r}) in the environment must be an integer, as launchers set it: correct "
                              "or unset it") from None


def get_local_rank() -> int:
    """This process's place on its machine: the GPU to use."""
    return launched_as()[2]


def next_group_id() -> str:
    """The n-th call gives the n-th name, the same in all processes of one launch and in no other launch's.

    A launcher that names its job by none of the known variables is known by its process, the parent of all ranks.
    """
    job = [f"{name}={os.environ[name]}" for name in _JOB_VARIABLES if name in os.environ] or [f"parent={os.getppid()}"]
    return hashlib.sha256("\n".join([*job, f"meeting={next(_meetings)}"]).encode()).hexdigest()[:40]
