"""What a check says."""

from dataclasses import dataclass
from typing import Literal

__all__ = ["Finding", "failure", "warning"]

Severity = Literal["failure", "warning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One thing that is wrong, or may become so."""

    name: str
    """Stable: what scripts look for."""

    severity: Severity
    where: str
    problem: str
    remedy: str


def failure(name: str, where: str, problem: str, remedy: str) -> Finding:
    """Return what keeps a job from running, or from running safely."""
    return Finding(name=name, severity="failure", where=where, problem=problem, remedy=remedy)


def warning(name: str, where: str, problem: str, remedy: str) -> Finding:
    """Return what a job can live with."""
    return Finding(name=name, severity="warning", where=where, problem=problem, remedy=remedy)
