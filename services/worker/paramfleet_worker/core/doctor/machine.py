"""Checks of what this machine has: memory, files, disks, kernels, torch."""

from collections.abc import Iterator

from paramfleet_worker.core.doctor.facts import Facts
from paramfleet_worker.core.doctor.findings import Finding, failure, warning

__all__ = ["check_kernels", "check_limits", "check_memory", "check_storage", "check_torch"]

PYTHONS = ((3, 11), (3, 13))
OLDEST_TORCH = (2, 6)
FEW_FILES = 1024
LITTLE_SHM = 64 << 20
"""What a container gets by default; torch's data loaders pass batches there."""

CHECKPOINT_SHARE = 1.2
"""Of the tables' bytes: a new checkpoint is written beside the former one's index."""

HEADROOM = 0.8
"""Share of the memory that tables may take: messages and growth need the rest."""

GIB = 1 << 30


def check_limits(facts: Facts) -> Iterator[Finding]:
    """Check Python, and the limits of this process."""
    machine = facts.machine
    if not PYTHONS[0] <= _version_of(machine.python) <= PYTHONS[1]:
        yield failure(
            "python-unsupported",
            "this interpreter",
            f"Python {machine.python} isn't one from 3.11 to 3.13",
            "make the environment with another: make install PYTHON=python3.13",
        )
    if machine.open_files < FEW_FILES:
        yield failure(
            "files-limit",
            "this process",
            f"it may open {machine.open_files} files; each member is a connection",
            f"ulimit -n {16 * FEW_FILES}",
        )
    if machine.shm_bytes is not None and machine.shm_bytes <= LITTLE_SHM:
        yield warning(
            "shm-small",
            "/dev/shm",  # noqa: S108 (looked at)
            f"it has {machine.shm_bytes >> 20} MiB: data loaders with workers fail in it",
            "docker run --shm-size=1g, or shm_size: 1g in Compose",
        )


def check_memory(facts: Facts) -> Iterator[Finding]:
    """Check that the tables fit."""
    machine, wanted = facts.machine, facts.table_bytes
    where = "this container" if machine.is_container_limit else "this machine"
    if wanted and wanted > HEADROOM * machine.memory_bytes:
        yield failure(
            "memory-too-small",
            where,
            f"tables of {wanted / GIB:.1f} GiB don't fit in {machine.memory_bytes / GIB:.1f} "
            "GiB with room for messages",
            "use more pservers, storage='bfloat16', or a higher limit",
        )
    if machine.memory_used_bytes > 0.95 * machine.memory_bytes:
        yield warning(
            "memory-nearly-full",
            where,
            f"{machine.memory_used_bytes / GIB:.1f} of {machine.memory_bytes / GIB:.1f} GiB "
            "are used already",
            "stop what uses it, or raise the limit",
        )


def check_kernels(facts: Facts) -> Iterator[Finding]:
    """Check that compiled kernels are there and can be kept."""
    machine = facts.machine
    if not machine.kernels_folder:
        yield warning(
            "kernels-not-kept",
            "the kernels' cache",
            "no folder for compiled kernels can be written: every process compiles its own",
            "set NUMBA_CACHE_DIR to a folder that this user may write",
        )
    elif machine.are_kernels_cold:
        yield warning(
            "kernels-cold",
            machine.kernels_folder,
            "the table kernels aren't compiled for this machine, Python and numba: the first "
            "start takes half a minute longer, or more where other processes are busy",
            "python -m paramfleet_shared.tables.warm",
        )


def check_torch(facts: Facts) -> Iterator[Finding]:
    """Check torch, and whether it can use the machine's device."""
    torch, machine = facts.torch, facts.machine
    if torch is None:
        return
    where = "this interpreter"
    if not torch.version:
        if facts.settings.role == "worker":
            yield failure(
                "torch-missing", where, "it has no torch", "pip install 'paramfleet[torch]'"
            )
        return
    if torch.error:
        yield failure(
            "torch-broken", where, f"torch can't be imported: {torch.error}", "install it again"
        )
        return
    if _version_of(torch.version) < OLDEST_TORCH:
        yield failure(
            "torch-old",
            where,
            f"torch {torch.version} is older than {'.'.join(map(str, OLDEST_TORCH))}",
            "pip install --upgrade torch",
        )
    if not machine.has_device:
        return
    if not torch.cuda:
        yield warning(
            "torch-without-cuda",
            where,
            f"this machine has a GPU, torch {torch.version} was built without CUDA",
            "install a CUDA build, where training should use the GPU",
        )
    elif machine.driver and _version_of(machine.driver) < _version_of(torch.cuda):
        yield failure(
            "cuda-driver-old",
            where,
            f"torch was built for CUDA {torch.cuda}, the driver can do {machine.driver}",
            "install a newer driver, or a torch for an older CUDA",
        )
    elif not torch.sees_device:
        yield failure(
            "cuda-unusable",
            where,
            "torch doesn't see the GPU of this machine",
            "look at nvidia-smi; in a container, ask for the GPU",
        )


def check_storage(facts: Facts) -> Iterator[Finding]:
    """Check the folder of checkpoints."""
    disk = facts.disk
    if disk is None:
        return
    if not disk.exists or not disk.is_writable:
        problem = "this user can't write there" if disk.exists else "there is no such folder"
        yield failure(
            "checkpoints-not-writable", disk.path, problem, "make it, and give it to this user"
        )
    elif disk.free_bytes < max(GIB, CHECKPOINT_SHARE * facts.table_bytes):
        yield failure(
            "disk-full",
            disk.path,
            f"{disk.free_bytes / GIB:.1f} GiB are free: too little for a checkpoint",
            "make room, or save elsewhere",
        )


def _version_of(text: str) -> tuple[int, ...]:
    parts = text.split("+", maxsplit=1)[0].split(".")[:2]
    return tuple(int(part) for part in parts if part.isdecimal())
