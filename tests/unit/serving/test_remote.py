"""The Python client: rows and dense parameters of a server, and models over it."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.serving.streams import UNIVERSE, Served, Stream, now

import paramfleet as fleet
from paramfleet.config.roles import RoleMaker
from paramfleet.nn import IdError
from paramfleet.serving import (
    Client,
    ExportMismatchError,
    RemoteEmbedding,
    RemoteEmbeddingBag,
    RemoteOptionError,
    ServerUnreachableError,
)
from paramfleet.serving.manifest import read_export_manifest
from paramfleet.session.checkpoint.saving import Saving
from paramfleet.session.session import Session
from paramfleet_shared.deltas.records import Change, StreamTable
from paramfleet_shared.errors.serving import (
    LookupTooLargeError,
    NoVersionError,
    NumberNotKeptError,
    ServingTableError,
)
from paramfleet_shared.net.secret import JobSecret

SECRET = "a secret of tests, which is long enough"


class Clicks(torch.nn.Module):
    """Ids [B, 3] to a score each."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = fleet.nn.EmbeddingBag(
            0, 4, mode="sum", padding_idx=0, initializer=fleet.nn.uniform(-0.5, 0.7)
        )
        self.deep = fleet.nn.Embedding(0, 4, padding_idx=0, storage="bfloat16", seed=3)
        self.tower = torch.nn.Linear(16, 1)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        features = torch.cat([self.deep(ids).flatten(1), self.wide(ids)], 1)
        scores: torch.Tensor = self.tower(features).squeeze(1)
        return scores


@pytest.fixture
def client_of() -> Iterator[Any]:
    """Return a function that makes clients of servers."""
    with ExitStack() as stack:

        def make(served: Served) -> Client:
            token = JobSecret(SECRET, "default").token("admin")
            return stack.enter_context(Client(served.url, token=token))

        yield make


@pytest.fixture
async def served(stream: Stream, serve: Any) -> Served:
    found: Served = await serve(stream.folder)
    await found.reach(0)
    return found


async def test_rows_come_in_the_shape_of_the_ids(
    served: Served, stream: Stream, client_of: Any
) -> None:
    client = client_of(served)

    def look() -> Any:
        asked = {"words": UNIVERSE[:12].reshape(3, 4), "users": UNIVERSE[:0]}
        return client.lookup(asked), client.width_of("users"), client.version()

    found, width, version = await asyncio.to_thread(look)

    expected = stream.reference.lookup("words", UNIVERSE[:12]).reshape(3, 4, 4)
    assert np.array_equal(found.rows["words"], expected)
    assert (found.rows["users"].shape, width) == ((0, 2), 2)
    assert found.version == version
    assert (version.stream, version.number) == (stream.identity, 0)


async def test_errors_are_those_of_the_server(
    served: Served, serve: Any, tmp_path: Any, client_of: Any
) -> None:
    client, empty = client_of(served), client_of(await serve(tmp_path / "nothing"))

    for error, act in (
        (ServingTableError, lambda: client.lookup({"word": UNIVERSE})),
        (ServingTableError, lambda: client.width_of("word")),
        (NumberNotKeptError, lambda: client.roll_back(7)),
        (NumberNotKeptError, lambda: client.roll_back(0, stream="0" * 32)),
        (NoVersionError, empty.version),
        (LookupTooLargeError, lambda: client.lookup({"words": np.arange(1 << 17 | 1)})),
    ):
        with pytest.raises(error):
            await asyncio.to_thread(act)


async def test_threads_share_a_client(served: Served, stream: Stream, client_of: Any) -> None:
    client = client_of(served)
    expected = stream.reference.lookup("words", UNIVERSE)

    def look(start: int) -> bool:
        ids = UNIVERSE[start : start + 50]
        rows = [client.lookup({"words": ids}).rows["words"] for _ in range(5)]
        return all(np.array_equal(each, expected[start : start + 50]) for each in rows)

    def all_of_them() -> list[bool]:
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(look, range(0, 350, 10)))

    assert all(await asyncio.to_thread(all_of_them))


async def test_a_kept_connection_that_the_server_closed_is_opened_anew(
    stream: Stream, serve: Any, client_of: Any
) -> None:
    served = await serve(stream.folder)
    await served.reach(0)
    client = client_of(served)
    await asyncio.to_thread(client.version)
    port = int(served.url.rpartition(":")[2])

    await served.close()
    await serve(stream.folder, port=port)

    async with asyncio.timeout(30):
        while True:
            try:
                version = await asyncio.to_thread(client.version)
            except (NoVersionError, ServerUnreachableError):
                await asyncio.sleep(0.01)
                continue
            break
    assert version.number == 0


def test_an_answer_that_drips_in_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ended = threading.Event()

        def drip() -> None:
            end, _ = listener.accept()
            with end:
                end.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
                while not ended.wait(0.02):
                    end.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        client = Client(f"http://127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.2)
        with pytest.raises(ServerUnreachableError, match=r"not in 0\.2 s"):
            client.version()
        ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "the connection ended"),
        (b"HTTP/1.1 200", "the connection ended"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", "isn't HTTP"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "invalid literal"),
        (b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "header without a name"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "no number"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "2 of 9 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "invalid literal"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999\r\n\r\n", "is too long"),
        (b"x" * 70_000, "without an end"),
    ],
)
def test_what_is_no_answer_is_named(answer: bytes, words: str) -> None:
    with (
        answering(answer) as url,
        Client(url, timeout_s=20.0) as client,
        pytest.raises(ServerUnreachableError, match=words),
    ):
        client.version()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n%s",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-length:44\r\n\r\n%s",
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"2c;x=y\r\n%s\r\n0\r\nA: b\r\n\r\n"
        ),
        b"HTTP/1.0 200 OK\r\n\r\n%s",
    ],
)
def test_answers_of_each_form_are_read(answer: bytes) -> None:
    content = b'{"version": {"stream": "abcd", "number": 5}}'

    with (
        answering(answer.replace(b"%s", content)) as url,
        Client(url, timeout_s=20.0) as client,
    ):
        assert client.version().number == 5


@contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Answer one request with these bytes, and close."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            end, _ = listener.accept()
            with end:
                end.recv(1 << 16)
                end.sendall(answer)
                end.shutdown(socket.SHUT_WR)
                end.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://me:it@x"}, "url"),
        ({"url": "http://x:99999"}, "url"),
        ({"timeout_s": 0}, "timeout_s"),
        ({"token": "\n"}, "token"),
        ({"url": "https://x", "tls": "/nothing/here"}, "tls"),
    ],
)
def test_wrong_arguments_are_named(options: Any, word: str) -> None:
    with pytest.raises(RemoteOptionError, match=word):
        Client(**{"url": "http://x:1", **options})


async def test_modules_answer_as_torch_s(
    served: Served, stream: Stream, client_of: Any
) -> None:
    client = client_of(served)

    def forward() -> Any:
        embedding = RemoteEmbedding(client, "users", negative_ids=True)
        bag = RemoteEmbeddingBag(client, "users", mode="sum", negative_ids=True)
        ids = torch.from_numpy(UNIVERSE[:12]).view(3, 4)
        with pytest.raises(IdError):
            RemoteEmbedding(client, "users")(ids)
        return embedding(ids), bag(ids), embedding(ids, different=True)

    rows, sums, (different, index) = await asyncio.to_thread(forward)

    expected = torch.from_numpy(stream.reference.lookup("users", UNIVERSE[:12])).view(3, 4, 2)
    assert torch.equal(rows, expected)
    assert torch.allclose(sums, expected.sum(1))
    assert torch.equal(different[index], expected)


async def test_a_loaded_model_answers_as_its_export_and_takes_newer_parameters(
    serve: Any, tmp_path: Any, client_of: Any
) -> None:
    model, folder = Clicks(), tmp_path / "export"
    export(model, folder)
    probe = torch.tensor([*range(90), 0, 5, 70]).view(-1, 3)
    stream = published(model, tmp_path / "stream", folder)
    served = await serve(stream.folder)
    await served.reach(0)
    client = client_of(served)
    local = fleet.serving.load(folder, Clicks())

    remote = await asyncio.to_thread(fleet.serving.load, folder, Clicks(), remote=client)

    def predict() -> torch.Tensor:
        with torch.inference_mode():
            scores: torch.Tensor = remote(probe)
            return scores

    with torch.inference_mode():
        assert torch.equal(await asyncio.to_thread(predict), local(probe))
    assert await asyncio.to_thread(fleet.serving.refresh, remote, client)
    assert not await asyncio.to_thread(fleet.serving.refresh, remote, client)
    bias = np.array([5.0], np.float32)
    stream.writer.publish(Change(now(), {}, {"tower.bias": bias}))
    await served.reach(1)
    assert await asyncio.to_thread(fleet.serving.refresh, remote, client)
    assert float(remote.tower.bias.detach()) == 5.0
    with pytest.raises(RemoteOptionError, match="unknown"):
        fleet.serving.load(folder, Clicks(), remote=client, unknown="zeros")
    other = torch.nn.Linear(2, 1)
    with pytest.raises(ExportMismatchError, match=r"tower\.bias"):
        await asyncio.to_thread(fleet.serving.refresh, other, client)


def export(model: Clicks, folder: Any) -> None:
    session = Session()
    session.init(RoleMaker(distributed=False))
    session.distributed_model(model)
    optimizer = session.distributed_optimizer(torch.optim.Adagrad(model.parameters(), lr=0.1))
    for _ in range(3):
        optimizer.minimize(model(torch.arange(60).view(-1, 3)).pow(2).sum())
    model.eval()
    Saving(session).save_inference_model(folder)


def published(model: Clicks, folder: Any, exported: Any) -> Stream:
    """Return a stream that begins with what was exported."""
    described = read_export_manifest(exported).tables
    tables = [
        StreamTable(
            name=table.name,
            dim=table.dim,
            seed=table.seed,
            initializer=table.initializer,
            storage=table.storage,
        )
        for table in described.values()
    ]
    pieces = [
        (name, rows.ids.numpy(), rows.rows.numpy())
        for name, rows in fleet.serving.tables(exported).items()
    ]
    dense = {n: p.detach().numpy() for n, p in model.tower.named_parameters("tower")}
    stream = Stream(folder)
    stream.writer.begin(tables, pieces, dense, moment=now())
    return stream
