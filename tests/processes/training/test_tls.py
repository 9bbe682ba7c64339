"""Whole jobs under mutual TLS: every connection, and a member that isn't one."""

from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from paramfleet_worker.app.commands.certs import certs

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def issue(folder: Path, job: str) -> None:
    roles = ("coordinator", "pserver", "worker", "admin")
    named = [word for role in roles for word in ("--role", role)]
    made = CliRunner().invoke(certs, ["init", "--dir", str(folder), "--job", job, *named])
    assert made.exit_code == 0, made.output


def test_a_job_under_tls_learns_the_same_to_the_bit(jobs: Any, tmp_path: Path) -> None:
    plain = jobs.run("train_tiny.py", workers=2, servers=2)
    running = jobs.new(workers=2, servers=2, PARAMFLEET_TLS_DIR=str(tmp_path / "tls"))
    issue(tmp_path / "tls", running.job)

    running.start_all("train_tiny.py")
    ended = running.end()

    assert [each["losses"] for each in ended.results] == [
        each["losses"] for each in plain.results
    ]
    assert "https://127.0.0.1" in ended.logs["coordinator"]


def test_workers_exchange_samples_under_tls(jobs: Any, tmp_path: Path) -> None:
    files = [tmp_path / "part-0", tmp_path / "part-1"]
    files[0].write_text("".join(f"1 {number} 0\n" for number in range(50)))
    files[1].touch()
    running = jobs.new(workers=2, servers=1, PARAMFLEET_TLS_DIR=str(tmp_path / "tls"))
    issue(tmp_path / "tls", running.job)

    running.start_all("shuffle_data.py", "--files", *map(str, files), "--rounds", "1")
    results = running.end().results

    shares = [result["rounds"][0] for result in results]
    assert sorted(number for share in shares for number, _ in share) == list(range(50))
    assert all(shares), "both have some, though one of them read all"


def test_a_worker_with_another_role_s_certificate_is_told_by_whom_and_why(
    jobs: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "tls"
    running = jobs.new(workers=1, servers=1, PARAMFLEET_TLS_DIR=str(folder))
    issue(folder, running.job)
    running.start_coordinator()
    running.wait_for("coordinator", "coordinator.serving")

    for kind in ("crt", "key"):
        (folder / f"admin.{kind}").rename(folder / f"worker.{kind}")
    running.start_worker(0, "train_tiny.py")

    assert running.code("worker0") != 0
    assert "coordinator refuses 127.0.0.1:" in running.log("worker0")
    assert "a certificate of admin; needed is a certificate of" in running.log("worker0")
    assert "tls.refused" in running.log("coordinator")
