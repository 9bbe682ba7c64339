"""A server is closed to strangers, and says who may do what."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.serving.conftest import SECRET
from tests.unit.serving.streams import UNIVERSE, Stream

from paramfleet.serving import Client, ServerRefusedError, ServerUnreachableError
from paramfleet_serving.app import ClosedServerError
from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.tokens import entry_of


async def test_who_shows_nothing_sees_its_health_alone(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder, role="")
    await served.reach(0)

    asked = [
        ("/v1/lookup", {"tables": {}}),
        ("/v1/rollback", {"number": 0}),
        ("/v1/follow", {}),
    ]
    asked += [(path, None) for path in ("/v1/tables", "/v1/version", "/v1/dense", "/metrics")]
    for path, body in asked:
        status, answer = await served.ask(path, body)
        assert (status, answer["error"]["code"]) == (401, "unauthenticated"), path
    assert (await served.ask("/readyz"))[0] == 200


async def test_readers_do_not_steer(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder, role="read")
    await served.reach(0)

    assert (await served.ask("/v1/version"))[0] == 200
    for path, body in (("/v1/rollback", {"number": 0}), ("/v1/follow", {})):
        assert (await served.ask(path, body))[0] == 403


async def test_open_reading_is_for_everybody(stream: Stream, serve: Any) -> None:
    served = await serve(stream.folder, role="", secret="", admin_open_reading=True)
    await served.reach(0)

    await served.agrees(stream.reference)
    assert (await served.ask("/v1/rollback", {"number": 0}))[0] == 403


async def test_it_does_not_start_where_nobody_may_ask(stream: Stream, serve: Any) -> None:
    with pytest.raises(ClosedServerError, match="paramfleet tokens new"):
        await serve(stream.folder, secret="")


async def test_it_says_first_that_no_such_job_runs_whose_secret_would_open_it(
    stream: Stream, serve: Any, tmp_path: Path
) -> None:
    others = {"source": "job:weather", "runtime_dir": str(tmp_path / "run"), "secret": ""}

    begin = "no job 'weather' of this user runs on this machine; .*"
    with pytest.raises(ClosedServerError, match=begin + "paramfleet tokens new"):
        await serve(stream.folder, **others)


async def test_it_says_who_may_ask_where_the_secret_alone_opens_it(
    stream: Stream, serve: Any, caplog: pytest.LogCaptureFixture
) -> None:
    served = await serve(stream.folder, job="clicks")

    (said,) = [each for each in caplog.records if each.msg == "serving.asks_for_secret"]
    assert "job's secret" in vars(said)["reason"]
    asks = f'Bearer $(paramfleet tokens derive --job clicks)" {served.url}/v1/version'
    assert asks in vars(said)["ask"]
    assert "PARAMFLEET_TOKENS_FILE=FILE" in vars(said)["remedy"]


@pytest.mark.parametrize("others", [{"admin_open_reading": True}, {"tokens_file": "tokens"}])
async def test_it_says_nothing_of_a_secret_where_others_may_ask(
    stream: Stream,
    serve: Any,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    others: dict[str, Any],
) -> None:
    if "tokens_file" in others:
        others = {"tokens_file": tokens_of(tmp_path)}

    await serve(stream.folder, **others)

    assert all(each.msg != "serving.asks_for_secret" for each in caplog.records)


async def test_a_server_of_a_job_takes_the_token_of_that_jobs_secret(
    stream: Stream, serve: Any
) -> None:
    of_job = {"source": "job:clicks", "follows": stream.folder}
    served = await serve(stream.folder, role="", **of_job)
    await served.reach(0)
    asked = {}
    for job in ("clicks", "default"):
        token = JobSecret(SECRET, job).token("read")
        headers = {"Authorization": f"Bearer {token}"}
        async with served.http.get(f"{served.url}/v1/version", headers=headers) as answer:
            asked[job] = answer.status

    assert asked == {"clicks": 200, "default": 401}


async def test_a_client_proves_the_server_by_its_certificate(
    stream: Stream, serve: Any, certificates: Any
) -> None:
    files = certificates.issue("serving")
    served = await serve(
        stream.folder,
        job="flights",
        tls_dir=str(files.ca.parent),
        tokens_file=tokens_of(files.ca.parent),
    )
    await served.reach(0)
    url = served.url.replace("http", "https")
    ids = {"words": UNIVERSE[:9]}

    def ask(**options: Any) -> Any:
        client = Client(url, **{"tls": files.ca, "token": TOKEN, **options})
        try:
            return client.lookup(ids).rows["words"]
        finally:
            client.close()

    rows = await asyncio.to_thread(ask)
    assert np.array_equal(rows, stream.reference.lookup("words", ids["words"]))
    with pytest.raises(ServerRefusedError, match="401"):
        await asyncio.to_thread(ask, token="")
    with pytest.raises(ServerUnreachableError, match="CERTIFICATE_VERIFY_FAILED"):
        await asyncio.to_thread(ask, tls=None)


async def test_a_client_refuses_the_certificate_of_another_role(
    stream: Stream, serve: Any, certificates: Any
) -> None:
    files = certificates.issue("worker")
    served = await serve(
        stream.folder, job="flights", tls_cert=str(files.cert), tls_key=str(files.key),
        tls_ca=str(files.ca), tokens_file=tokens_of(files.ca.parent),
    )  # fmt: skip
    url = served.url.replace("http", "https")

    with pytest.raises(ServerUnreachableError, match="that of worker, not of serving"):
        await asyncio.to_thread(Client(url, tls=str(files.ca), token=TOKEN).version)


TOKEN = JobSecret("a text that makes a token for tests", "flights").token("read")


def tokens_of(folder: Path) -> str:
    path = folder / "tokens"
    path.write_text(entry_of(TOKEN, "read", "tests").to_line(), encoding="ascii")
    return str(path)
