"""``paramfleet launch --resume``: the checkpoint from which a job's processes continue.

The launcher reads the candidates and chooses one; pservers and workers learn its folder from
their environment.
"""

from collections.abc import Callable
from pathlib import Path

from paramfleet_shared.errors import IntegrityError
from paramfleet_shared.files.addresses import place_of
from paramfleet_worker.app.checkpoints.listing import list_checkpoints
from paramfleet_worker.app.checkpoints.verifying import problem_of
from paramfleet_worker.core.checkpoints.choosing import choose, farther_than
from paramfleet_worker.core.checkpoints.command_line import RESUME_FROM, CommandLine

__all__ = ["RESUME_FROM", "NoWholeCheckpointError", "resume_environment"]


class NoWholeCheckpointError(IntegrityError):
    """A folder has checkpoints, and each of them is damaged."""

    code = "integrity.no_whole_checkpoint"
    path: str
    newest: str
    reason: str
    sentence = (
        "{path} has checkpoints, but none is complete; the newest is {newest}: {reason}; "
        "restore one from a backup, or move them away to start from the beginning"
    )


def resume_environment(
    folder: Path, say: Callable[[str], None], again: CommandLine | None = None
) -> dict[str, str]:
    """Return what the processes of a job have in their environment to continue.

    Args:
        folder: Of checkpoints, or one itself.
        say: Gets a line for each checkpoint that is skipped, and for what is chosen.
        again: How this launch was called; it is named how to take another checkpoint.

    Raises:
        CheckpointFolderError: if there is no such folder.
        NoWholeCheckpointError: if it has checkpoints, and none is whole.
    """
    # ``latest`` may lead elsewhere a moment later
    folder = folder.resolve() if folder.is_symlink() else folder.absolute()
    found = list_checkpoints(folder)
    choice = choose(found, lambda each: problem_of(place_of(each.path)))
    for each, why in choice.skipped:
        say(f"resume: skipped {each.path}: {why}")
    chosen = choice.chosen
    if chosen is None:
        if choice.damaged:
            newest, reason = choice.damaged[0]
            raise NoWholeCheckpointError(path=str(folder), newest=newest.name, reason=reason)
        say(f"resume: no checkpoint in {folder} yet: the job starts from the beginning")
        return {RESUME_FROM: ""}
    step = "an unknown step" if chosen.step is None else f"step {chosen.step}"
    say(f"resume: the job continues from {chosen.path}, {step}")
    skipped = [each for each, _ in choice.skipped]
    farther = farther_than(chosen, (each for each in found if each not in skipped))
    if farther is not None:
        again = again or CommandLine()
        same = f", {again.same}" if again.same else ""
        say(
            f"warning: that is the newest checkpoint, but {farther.name} has more steps "
            f"({farther.step}); to continue from that one{same}: "
            f"{again.resuming(farther.path)}"
        )
    if chosen.consistent is False:
        say(f"warning: {chosen.name} is not a consistent cut (paramfleet checkpoint verify)")
    return {RESUME_FROM: chosen.path}
