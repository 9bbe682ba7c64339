"""Run a pserver: ``python -m paramfleet_pserver``."""

from paramfleet_pserver.app import serve
from paramfleet_pserver.config import PServerSettings
from paramfleet_shared.settings.cli import settings_command
from paramfleet_shared.settings.config import Resolved
from paramfleet_shared.tables.kernels.basics.readiness import is_cold
from paramfleet_shared.tables.warm import warm_usual

__all__ = ["main", "prepare"]


def prepare() -> None:
    """Load what a pserver needs before it is known which one: what a standby process does."""
    if not is_cold():
        warm_usual()


def _run(resolved: Resolved[PServerSettings]) -> int:
    serve(resolved)
    return 0


main = settings_command(
    PServerSettings,
    name="paramfleet pserver",
    section="pserver",
    help="Run a pserver (parameter server): it stores a part of a job's tables, until the job "
    "ends.",
    run=_run,
)

if __name__ == "__main__":
    main()
