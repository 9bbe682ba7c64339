"""All checks, in the order in which a person would look."""

from paramfleet_worker.core.doctor.facts import Facts
from paramfleet_worker.core.doctor.findings import Finding
from paramfleet_worker.core.doctor.machine import (
    check_kernels,
    check_limits,
    check_memory,
    check_storage,
    check_torch,
)
from paramfleet_worker.core.doctor.network import check_hosts, check_ports
from paramfleet_worker.core.doctor.registry import (
    check_clocks,
    check_coordinator,
    check_members,
    check_redis,
)
from paramfleet_worker.core.doctor.secrets import check_certificate, check_tokens
from paramfleet_worker.core.doctor.settings import check_ranks, check_settings

__all__ = ["examine"]

CHECKS = (
    check_settings,
    check_ranks,
    check_redis,
    check_clocks,
    check_hosts,
    check_ports,
    check_coordinator,
    check_members,
    check_certificate,
    check_tokens,
    check_limits,
    check_memory,
    check_storage,
    check_kernels,
    check_torch,
)


def examine(facts: Facts) -> list[Finding]:
    """Return what is wrong, failures first."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return sorted(found, key=lambda finding: finding.severity != "failure")
