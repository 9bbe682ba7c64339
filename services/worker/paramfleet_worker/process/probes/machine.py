"""What this machine, this process and this interpreter may use."""

import contextlib
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from paramfleet_shared.system.open_files import raise_open_files
from paramfleet_shared.tables.kernels.basics.folders import UnsafeKernelsError
from paramfleet_shared.tables.kernels.basics.readiness import is_cold, kernel_folders
from paramfleet_worker.core.doctor.facts import DiskFacts, MachineFacts, TorchFacts

__all__ = ["look_at_disk", "look_at_machine", "look_at_torch"]

_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USED = ("/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory/memory.usage_in_bytes")
_IMPORT_TIMEOUT_S = 60.0
_ASK_TORCH = (
    "import json, torch; print(json.dumps({'version': torch.__version__, "
    "'cuda': torch.version.cuda or '', 'sees_device': torch.cuda.is_available()}))"
)


def look_at_machine() -> MachineFacts:
    """Return what there is."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _first_number(_LIMITS)
    is_container_limit = limit is not None and limit < total
    folder = None
    with contextlib.suppress(UnsafeKernelsError):  # which ``--security`` tells
        folder = next((each for each in kernel_folders() if _can_write(each)), None)
    return MachineFacts(
        python=platform.python_version(),
        open_files=raise_open_files(),  # as members do
        memory_bytes=limit if is_container_limit and limit is not None else total,
        is_container_limit=is_container_limit,
        memory_used_bytes=(_first_number(_USED) or 0) if is_container_limit else _used(total),
        shm_bytes=_size_of("/dev/shm"),  # noqa: S108 (looked at)
        kernels_folder=str(folder or ""),
        are_kernels_cold=folder is not None and is_cold(),
        has_device=Path("/proc/driver/nvidia/version").exists(),
        driver=_driver(),
    )


def look_at_torch() -> TorchFacts:
    """Return what torch says of itself, imported in a process of its own."""
    try:
        version = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        return TorchFacts()
    try:
        answer = subprocess.run(  # noqa: S603 -- a fixed command
            [sys.executable, "-P", "-c", _ASK_TORCH],
            capture_output=True,
            text=True,
            check=True,
            timeout=_IMPORT_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().splitlines()
        return TorchFacts(version=version, error=reason[-1] if reason else "it ended badly")
    except subprocess.TimeoutExpired:
        return TorchFacts(version=version, error=f"not within {_IMPORT_TIMEOUT_S:g} s")
    return TorchFacts(**json.loads(answer.stdout.splitlines()[-1]))


def look_at_disk(folder: Path) -> DiskFacts:
    """Return whether checkpoints can be written to a folder."""
    if not folder.is_dir():
        return DiskFacts(path=str(folder), exists=False, is_writable=False)
    return DiskFacts(
        path=str(folder),
        is_writable=os.access(folder, os.W_OK | os.X_OK),
        free_bytes=shutil.disk_usage(folder).free,
    )


def _can_write(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return os.access(folder, os.W_OK | os.X_OK)


def _first_number(paths: tuple[str, ...]) -> int | None:
    for path in paths:
        with contextlib.suppress(OSError, ValueError):
            return int(Path(path).read_text(encoding="ascii"))
    return None


def _used(total: int) -> int:
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = next(line for line in lines if line.startswith("MemAvailable:"))
        return total - (int(free.split()[1]) << 10)
    return 0


def _size_of(folder: str) -> int | None:
    try:
        return shutil.disk_usage(folder).total
    except OSError:
        return None


def _driver() -> str:
    """Return the newest CUDA that the driver can do, as ``nvidia-smi`` says it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return ""
    try:
        answer = subprocess.run(  # noqa: S603 -- a fixed command
            [program], capture_output=True, text=True, check=True, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    _, _, rest = answer.stdout.partition("CUDA Version: ")
    return rest.split()[0] if rest else ""
