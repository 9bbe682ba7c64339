"""What ``paramfleet demo`` hands to the launcher."""

from pathlib import Path

from paramfleet_shared.errors import ContractError

__all__ = ["NEXT", "SCRIPT", "NoTorchError", "launch_words"]

SCRIPT = Path(__file__).with_name("clicks.py")
"""The example: a training script as users write them."""


NEXT = (
    "next: `paramfleet new NAME` makes a project for your own data and model, with a README; "
    "`paramfleet demo --show` prints the script of this example"
)
"""What is said behind a demo that went well."""


class NoTorchError(ContractError):
    """The example can't train here, because PyTorch isn't installed."""

    code = "contract.no_torch"
    sentence = (
        "the demo trains with PyTorch, which isn't installed: pip install 'paramfleet[torch]'"
    )


def launch_words(
    *, mode: str, servers: int, workers: int, steps: int, torch: bool
) -> list[str]:
    """Return what ``paramfleet launch`` is given.

    Args:
        mode: How the example trains.
        servers: How many pservers.
        workers: How many workers.
        steps: How many steps of each worker.
        torch: Whether PyTorch is installed.

    Raises:
        NoTorchError: if it isn't.
    """
    if not torch:
        raise NoTorchError
    job = [f"--server_num={servers}", f"--worker_num={workers}"]
    return [*job, str(SCRIPT), f"--mode={mode}", f"--steps={steps}"]
