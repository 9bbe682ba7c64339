"""Run a pserver: ``python -m paramfleet_pserver``."""

from paramfleet_pserver.app import serve
from paramfleet_pserver.config import PServerSettings
from paramfleet_shared.settings.cli import settings_command
from paramfleet_shared.settings.config import Resolved

__all__ = ["main"]


def _run(resolved: Resolved[PServerSettings]) -> int:
    serve(resolved)
    return 0


main = settings_command(
    PServerSettings,
    name="paramfleet pserver",
    section="pserver",
    help="Serve a part of a job's tables until the job has ended.",
    run=_run,
)

if __name__ == "__main__":
    main()
