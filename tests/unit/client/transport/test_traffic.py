"""What a worker counts of its messages."""

import asyncio
import urllib.request

import numpy as np

from paramfleet.session.worker_metrics import Progress
from paramfleet.telemetry.traffic import Traffic
from paramfleet_shared.net.wire.message import Message
from paramfleet_shared.settings.config import JobSettings
from paramfleet_shared.testing.clock import FakeClock

PULL = Message(
    fields={"parts": [{"table": "deep"}, {"table": "flat"}]},
    tensors={"0.ids": np.arange(3), "0.offsets": np.arange(9)},
)
ANSWER = Message(
    tensors={"0.rows": np.zeros((3, 4), np.float32), "1.rows": np.zeros(7, np.float32)}
)


def test_bytes_are_counted_by_operation_and_by_table() -> None:
    traffic = Traffic()

    for _ in range(2):
        traffic.count("pull", 300, 200)
    traffic.count("leave", 20, 10)
    traffic.count_tables([PULL, PULL], [ANSWER, ANSWER])

    assert traffic.sent_bytes == {"pull": 600, "leave": 20}
    assert traffic.received_bytes == {"pull": 400, "leave": 10}
    assert traffic.table_bytes == {"deep": 2 * (24 + 72 + 48), "flat": 2 * 28}


async def test_the_admin_address_shows_them() -> None:
    progress, traffic = Progress(FakeClock(), lambda: None), Traffic()
    progress.watch_traffic(traffic)
    traffic.count("pull", 300, 200)
    traffic.count_tables([PULL], [ANSWER])
    admin = progress.admin(JobSettings(admin_open_reading=True))
    port = await admin.start("127.0.0.1", 0)

    def get(path: str) -> str:
        return str(urllib.request.urlopen(f"http://127.0.0.1:{port}{path}").read().decode())

    metrics = await asyncio.to_thread(get, "/metrics")
    status = await asyncio.to_thread(get, "/status")
    await admin.close()

    assert 'paramfleet_worker_received_bytes{operation="pull"} 200.0' in metrics
    assert '"deep"' in status
