"""A secret for jobs of tests, which is none."""

from paramfleet_shared.net.secret import JobSecret

__all__ = ["SECRET", "secret_for"]

SECRET = "known-to-every-test-and-so-to-everybody"  # noqa: S105 (none)


def secret_for(job: str) -> JobSecret:
    """Return what connections of a test's job prove."""
    return JobSecret(SECRET, job)
