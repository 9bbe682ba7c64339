"""What is said at once where there is nothing to follow as yet: the name may be wrong."""

from pathlib import Path

from paramfleet_serving.config import ServingSettings
from paramfleet_serving.jobs.finding import launched_job
from paramfleet_shared.files.addresses import Address, place_of
from paramfleet_shared.files.job_folder import JobFolder, UnsafeFolderError, runtime_dir
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.values.texts import nearest

__all__ = ["absent_job", "reason_to_wait"]


def reason_to_wait(settings: ServingSettings) -> str:
    """Return why there is nothing to serve as yet, and what to do; empty if nothing is known.

    Raises:
        OSError: if the folder can't be looked at.
    """
    if settings.followed_job:
        told = absent_job(settings)
        reads = f"reads the registry (Redis) at {settings.redis}"
        return f"{told}; this waits until one begins, and {reads}" if told else ""
    folder = place_of(settings.source).expanduser()
    return "" if isinstance(folder, Address) else _of_folder(folder)


def absent_job(settings: ServingSettings) -> str:
    """Return that no job of the name that is followed was launched here by this user.

    Empty if one was, if none is followed, and where a registry is named: it may be anywhere.
    """
    job = settings.followed_job
    usual = JobSettings().redis
    if not job or settings.redis != usual or launched_job(_named(settings, job)) is not None:
        return ""
    try:
        running = JobFolder.running(runtime_dir(settings.runtime_dir))
        names = sorted({facts.job for each in running if (facts := each.facts())})
    except UnsafeFolderError:
        names = []
    near = nearest(job, names)
    told = f"no job {job!r} of this user runs on this machine"
    if near:
        told += f"; did you mean job:{near}?"
    elif names:
        told += f"; these do: {', '.join(names)}"
    return told


def _of_folder(folder: Path) -> str:
    """Return why a folder isn't followed.

    Raises:
        OSError: if it can't be looked at.
    """
    if (folder / "stream.json").exists():
        return ""
    if (folder / "manifest.json").exists():
        is_export = any(folder.glob("rows.*.safetensors")) or (folder / "model.pt").exists()
        kind = "an export (save_inference_model)" if is_export else "a checkpoint"
        return (
            f"{folder} is {kind}, and no stream, and won't become one: a server follows a "
            "stream that `paramfleet delta follow FOLDER --job NAME` writes, or a running job "
            "(--from job:NAME); an export is loaded in Python, by fleet.serving.load"
        )
    there = "has no stream.json" if folder.is_dir() else "doesn't exist"
    return (
        f"{folder} {there}: this waits until a stream is there; "
        "`paramfleet delta follow FOLDER --job NAME` writes one"
    )


def _named(settings: ServingSettings, job: str) -> JobSettings:
    return JobSettings(job=job, redis=settings.redis, runtime_dir=settings.runtime_dir)
