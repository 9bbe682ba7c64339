"""Checks of settings and of the role that the environment gives."""

from collections.abc import Iterator

from paramfleet_shared.values.texts import nearest
from paramfleet_worker.core.doctor.facts import Facts
from paramfleet_worker.core.doctor.findings import Finding, failure

__all__ = ["check_ranks", "check_settings"]


def check_settings(facts: Facts) -> Iterator[Finding]:
    """Check that settings can be read, and that all of them are."""
    settings = facts.settings
    for name in settings.variables:
        if name in settings.known:
            continue
        near = nearest(name, settings.known)
        hint = f"did you mean {near}?" if near else "docs/configuration.md has all names"
        yield failure("setting-unknown", name, "nothing reads this setting", hint)
    if settings.error:
        yield failure(
            "setting-invalid", "settings", settings.error, "docs/configuration.md has the rules"
        )


def check_ranks(facts: Facts) -> Iterator[Finding]:
    """Check that Fleet's role variables fit each other."""
    fleet = facts.settings.fleet
    role = fleet.get("TRAINING_ROLE", "")
    if role and role not in {"TRAINER", "PSERVER", "COORDINATOR"}:
        yield failure(
            "role-unknown",
            "TRAINING_ROLE",
            f"it is {role!r}",
            "TRAINER or PSERVER; without it a script trains in its one process",
        )
    rank, num = fleet.get("PADDLE_TRAINER_ID", ""), fleet.get("PADDLE_TRAINERS_NUM", "")
    for name, text in (("PADDLE_TRAINER_ID", rank), ("PADDLE_TRAINERS_NUM", num)):
        if text and not text.isdecimal():
            yield failure(
                "rank-invalid", name, f"{text!r} isn't a number", "set a whole number"
            )
    if rank.isdecimal() and num.isdecimal() and int(rank) >= int(num):
        yield failure(
            "rank-out-of-range",
            "PADDLE_TRAINER_ID",
            f"rank {rank} of {num} workers: ranks go from 0 to {int(num) - 1}",
            "correct it, or leave it out: the coordinator assigns ranks",
        )
    endpoints = [
        each for each in fleet.get("PADDLE_PSERVERS_IP_PORT_LIST", "").split(",") if each
    ]
    if len(endpoints) != len(set(endpoints)):
        yield failure(
            "endpoint-twice",
            "PADDLE_PSERVERS_IP_PORT_LIST",
            "two pservers have the same address",
            "give each its own ip:port",
        )
    here = f"{fleet.get('POD_IP', '')}:{fleet.get('PADDLE_PORT', '')}"
    if role == "PSERVER" and endpoints and here not in endpoints:
        yield failure(
            "endpoint-not-listed",
            "POD_IP, PADDLE_PORT",
            f"this pserver is {here}, which PADDLE_PSERVERS_IP_PORT_LIST doesn't name",
            "name it there, as the others do",
        )
