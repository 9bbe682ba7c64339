"""The configuration of a launched Redis."""

import stat
from pathlib import Path

from paramfleet_worker.core.topology import Host, RedisAddress
from paramfleet_worker.process.redis import redis_command


def test_the_password_is_in_a_private_file_and_not_on_the_command_line(tmp_path: Path) -> None:
    address = RedisAddress(host=Host("10.0.0.1"), port=6379, password='pa"ss\n é')

    command = redis_command(Path("/bin/redis-server"), address, tmp_path)

    file = tmp_path / "redis.conf"
    assert command == ["/bin/redis-server", str(file)]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    lines = file.read_text().splitlines()
    assert 'requirepass "pa\\x22ss\\x0a \\xc3\\xa9"' in lines
    assert {"bind 10.0.0.1", "port 6379", 'save ""', "appendonly no"} <= set(lines)


def test_no_password_is_no_requirement(tmp_path: Path) -> None:
    address = RedisAddress(host=Host("127.0.0.1"), port=6379, password="")

    redis_command(Path("/bin/redis-server"), address, tmp_path)

    assert "requirepass" not in (tmp_path / "redis.conf").read_text()
