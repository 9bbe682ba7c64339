"""What an operator reads of a job while it trains: health, status and metrics of every role."""

import json
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import redis

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def get(running: Any, address: str, path: str) -> tuple[int, str]:
    request = urllib.request.Request(f"http://{address}{path}", headers=running.heads)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.status, answer.read().decode()


def curl_http2(address: str, path: str) -> str:
    url = f"http://{address}{path}"
    done = subprocess.run(
        ["curl", "--http2-prior-knowledge", "-sS", "-m5", "-w", " %{http_code}", url],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def coordinator_admin(running: Any) -> str:
    with redis.Redis.from_url(running.redis) as client:
        record = client.hget(f"paramfleet:{running.job}:coordinator", "record")
    return str(json.loads(record)["admin"])


@pytest.mark.parametrize("mode", ["sync", "async", "geo"])
def test_every_role_tells_how_it_is_while_the_job_trains(
    jobs: Any, mode: str, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    running = jobs.start("train_long.py", "--mode", mode, "--until", str(enough))
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")

    coordinator = coordinator_admin(running)
    members = json.loads(get(running, coordinator, "/status")[1])["members"]
    admins = {(member["role"], member["index"]): member["admin"] for member in members}
    for address in [coordinator, *admins.values()]:
        assert json.loads(get(running, address, "/healthz")[1]) == {"ok": True}
        assert json.loads(get(running, address, "/readyz")[1])["ready"] is True
        assert get(running, address, "/config")[0] == 200
        assert "# TYPE paramfleet_" in get(running, address, "/metrics")[1]

    for rank in (0, 1):
        said = json.loads(get(running, admins["worker", rank], "/status")[1])
        assert (said["role"], said["rank"], said["incarnation"]) == ("worker", rank, 1)
        assert said["mode"] == mode
        assert said["step"] >= 5
        assert said["loss"] > 0
        assert said["examples_per_s"] > 0
        assert said["staleness"] >= 0
        assert said["uptime_s"] > 0
        metrics = samples(get(running, admins["worker", rank], "/metrics")[1])
        assert metrics["paramfleet_worker_step"] >= 5
        assert metrics["paramfleet_worker_examples_total"] >= 5 * 32
        assert metrics["paramfleet_worker_loss"] > 0
        assert metrics["paramfleet_worker_examples_per_s"] > 0
        assert metrics["paramfleet_worker_staleness"] >= 0
        assert metrics["paramfleet_worker_receiving_bytes"] >= 0
        assert metrics["paramfleet_worker_sending_bytes"] >= 0
    for index in (0, 1):
        said = json.loads(get(running, admins["pserver", index], "/status")[1])
        assert (said["role"], said["index"], said["mode"]) == ("pserver", index, mode)
        assert {table["name"] for table in said["tables"]} == {"deep", "dense_0"}

    enough.touch()
    assert running.end().codes == dict.fromkeys(running.pids, 0), running.end().story()


def test_the_coordinator_adds_up_what_members_say(jobs: Any, tmp_path: Path) -> None:
    enough = tmp_path / "enough"
    running = jobs.start("train_long.py", "--until", str(enough))
    for rank in (0, 1):
        running.wait_for(f"worker{rank}", "training as")

    address = coordinator_admin(running)
    said = wait_until(
        running,
        address,
        lambda status: rows_of(status, "deep") > 0 and has_stepped(status),
    )

    assert said["state"] == "training"
    assert said["failure"] is None
    roles = [(member["role"], member["index"]) for member in said["members"]]
    assert roles == [("pserver", 0), ("pserver", 1), ("worker", 0), ("worker", 1)]
    assert all(member["alive"] and not member["done"] for member in said["members"])
    workers = [member["facts"] for member in said["members"] if member["role"] == "worker"]
    assert all(facts["step"] > 0 and facts["mode"] == "sync" for facts in workers)
    pservers = [member["facts"] for member in said["members"] if member["role"] == "pserver"]
    for table in said["tables"]:
        parts = [t for facts in pservers for t in facts["tables"] if t["name"] == table["name"]]
        for fact in ("rows", "bytes", "pulls", "pushes"):
            assert table[fact] == sum(part[fact] for part in parts), fact
        assert table["tier"] == "memory"
        named = [shard for part in parts for shard in part["shards"]]
        uses = sorted((s["pulled"] + s["pushed"] for s in named), reverse=True)
        assert [s["pulled"] + s["pushed"] for s in table["shards"]] == uses[:5]
        assert {shard["server"] for shard in table["shards"]} <= {0, 1}
    assert len(said["placement"]["endpoints"]) == 2

    enough.touch()
    assert set(running.end().codes.values()) == {0}, running.end().story()


def test_curl_reads_an_open_pservers_health_over_http2_while_it_serves(
    jobs: Any, tmp_path: Path
) -> None:
    enough = tmp_path / "enough"
    is_open = {"PARAMFLEET_SECRET": "", "PARAMFLEET_INSECURE": "true"}
    running = jobs.start("train_long.py", "--until", str(enough), workers=1, **is_open)
    running.wait_for("worker0", "training as")

    for port in running.ports:
        assert curl_http2(f"127.0.0.1:{port}", "/healthz") == '{"ok": true}\n 200'
        assert curl_http2(f"127.0.0.1:{port}", "/nothing").endswith(" 404")

    enough.touch()
    assert set(running.end().codes.values()) == {0}, running.end().story()


def samples(text: str) -> dict[str, float]:
    lines = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, value in lines}


def rows_of(status: dict[str, Any], table: str) -> int:
    return next((t["rows"] for t in status["tables"] if t["name"] == table), 0)


def has_stepped(status: dict[str, Any]) -> bool:
    workers = [member["facts"] for member in status["members"] if member["role"] == "worker"]
    return all(facts.get("step", 0) > 0 for facts in workers)


def wait_until(running: Any, address: str, holds: Any) -> dict[str, Any]:
    """Read the coordinator's status until it tells; heartbeats carry it."""
    deadline = time.perf_counter() + 60
    while True:
        said: dict[str, Any] = json.loads(get(running, address, "/status")[1])
        if holds(said):
            return said
        assert time.perf_counter() < deadline, said
