"""``fleet.report`` and ``fleet.job_progress``: reports of workers to the job and each other."""

from typing import Any

from paramfleet.session.session import Session
from paramfleet_shared.errors import ContractError
from paramfleet_shared.values.bounds import MAX_WEIGHT

__all__ = ["ReportError", "Reporting"]


class ReportError(ContractError):
    """A script reported a number that nothing can have so many of."""

    code = "contract.report"
    name: str
    value: float
    sentence = (
        f"fleet.report({{name}}={{value}}): must be a number from 0 to {MAX_WEIGHT:g}; nothing "
        "was reported"
    )


class Reporting:
    """What a session offers of this.

    Args:
        session: Whose worker reports.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def report(
        self, *, loss: float, examples: int, total_steps: float | None = None, **metrics: float
    ) -> None:
        """Report this worker's progress to the job; shown on its status page.

        Args:
            loss: The loss of the last batch.
            examples: Examples trained on since the last report.
            total_steps: Steps that this worker will have taken at the end of the training, if
                the script knows: the terminal and the status page then say how long it takes.
            **metrics: Further numbers by name, drawn as curves; the first 16 names count.

        Raises:
            ReportError: if ``examples`` or ``total_steps`` is no number of things.
        """
        for name, value in (("examples", examples), ("total_steps", total_steps)):
            if value is not None and not 0 <= value <= MAX_WEIGHT:
                raise ReportError(name=name, value=value)
        if total_steps is not None:
            self._session.progress.note(total_steps=int(total_steps))
        self._session.progress.report(loss=loss, examples=examples, metrics=metrics)

    def job_progress(self) -> list[dict[str, Any]]:
        """Return what each worker last reported, by rank.

        Each is ``rank``, ``step``, ``loss``, ``examples_per_s``, ``staleness``, ``mode``,
        ``sent_bytes`` and ``received_bytes``, which count what went to the pservers and
        came from them, and more that the dashboard shows; a worker that hasn't reported
        yet is left out.
        """
        said = self._session.backend.job_facts()
        return [
            {"rank": rank, **{k: v for k, v in facts.items() if k != "versions"}}
            for rank, facts in sorted(said.items())
            if facts.get("examples_per_s") is not None
        ]
