"""``paramfleet certs`` and ``paramfleet tokens``, run as commands on real files."""

import hashlib
import shutil
import stat
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paramfleet_shared.net.secret import JobSecret
from paramfleet_shared.net.tls import MemberName
from paramfleet_shared.net.tokens import Tokens, TokensFileError
from paramfleet_shared.system.processes.keeping import tied
from paramfleet_worker.app.commands.certs import certs
from paramfleet_worker.app.commands.tokens import tokens
from paramfleet_worker.process.certificates import Authority, CertificateFileError

OPENSSL = shutil.which("openssl")


def run(*words: str) -> Result:
    return CliRunner().invoke(certs, list(words))


def init(folder: Path, *more: str) -> Result:
    return run(
        "init", "--dir", str(folder), "--job", "flights", "--role", "worker",
        "--role", "pserver", *more,
    )  # fmt: skip


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_an_authority_and_roles_are_made_at_once(tmp_path: Path) -> None:
    result = init(tmp_path / "tls")

    assert result.exit_code == 0
    assert sorted(content(tmp_path / "tls")) == [
        "ca.crt", "ca.key", "pserver.crt", "pserver.key", "worker.crt", "worker.key",
    ]  # fmt: skip


def test_what_was_made_is_kept_when_it_runs_again(tmp_path: Path) -> None:
    init(tmp_path)
    before = content(tmp_path)

    result = init(tmp_path)

    assert "worker: kept" in result.stderr
    assert content(tmp_path) == before


def test_a_host_that_is_new_makes_a_new_certificate(tmp_path: Path) -> None:
    init(tmp_path, "--host", "a.example")

    result = init(tmp_path, "--host", "b.example", "--host", "10.0.0.1")

    assert "worker: made" in result.stderr
    hosts = {fact.role: fact.hosts for fact in Authority(tmp_path).show()}
    assert hosts["worker"] == ("b.example", "10.0.0.1")


def test_a_certificate_that_soon_ends_is_made_anew(tmp_path: Path) -> None:
    init(tmp_path, "--days", "30")
    later = Authority(tmp_path, now=datetime.now(UTC) + timedelta(days=21))

    assert later.issue(MemberName("flights", "worker"))


def test_only_the_owner_may_read_any_of_it(tmp_path: Path) -> None:
    init(tmp_path / "tls")

    modes = {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "tls").iterdir()}
    assert modes == {0o600}
    assert stat.S_IMODE((tmp_path / "tls").stat().st_mode) == 0o700


def test_renewing_keeps_names_and_changes_keys(tmp_path: Path) -> None:
    init(tmp_path, "--host", "a.example")
    before = content(tmp_path)

    result = run("renew", "--dir", str(tmp_path))

    after = content(tmp_path)
    assert result.exit_code == 0
    assert {name for name in before if before[name] == after[name]} == {"ca.crt", "ca.key"}
    hosts = {fact.role: fact.hosts for fact in Authority(tmp_path).show()}
    assert hosts["pserver"] == ("a.example",)


def test_nothing_that_is_shown_is_secret(tmp_path: Path) -> None:
    made = init(tmp_path)
    shown = run("show", "--dir", str(tmp_path))

    keys = "".join(path.read_text() for path in tmp_path.glob("*.key"))
    secrets = [line for line in keys.splitlines() if not line.startswith("---")]
    assert "worker" in shown.output
    assert not any(line in made.output + shown.output for line in secrets)


@pytest.mark.skipif(OPENSSL is None, reason="no openssl to judge with")
def test_openssl_agrees_with_every_extension(tmp_path: Path) -> None:
    init(tmp_path, "--host", "a.example")
    assert OPENSSL is not None

    command = [
        OPENSSL, "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname",
        "a.example", "-CAfile", str(tmp_path / "ca.crt"), str(tmp_path / "worker.crt"),
    ]  # fmt: skip
    verdict = subprocess.run(tied(command), capture_output=True, text=True, check=False)

    assert verdict.stdout.strip().endswith("OK")


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        ("ca.key", "the other half of the pair is missing"),
        ("worker.crt", "can't be read as a certificate"),
    ],
)
def test_a_folder_that_is_half_there_is_an_error_by_name(
    tmp_path: Path, broken: str, sentence: str
) -> None:
    init(tmp_path)
    if broken == "ca.key":
        (tmp_path / broken).unlink()
    else:
        (tmp_path / broken).write_text("half")

    result = init(tmp_path)

    assert result.exit_code == 1
    assert sentence in result.stderr


def test_a_key_of_another_certificate_is_told_before_it_is_used(tmp_path: Path) -> None:
    init(tmp_path)
    shutil.copy(tmp_path / "pserver.key", tmp_path / "worker.key")

    with pytest.raises(CertificateFileError, match="isn't this certificate's"):
        Authority(tmp_path).issue(MemberName("flights", "worker"))


def test_without_an_authority_nothing_can_be_issued(tmp_path: Path) -> None:
    result = run("issue", "--dir", str(tmp_path), "--role", "worker")

    assert result.exit_code == 1
    assert "ca.crt: there is no such file" in result.stderr


def token(path: Path, *words: str) -> Result:
    return CliRunner().invoke(tokens, [words[0], "--file", str(path), *words[1:]])


def test_a_token_is_printed_once_and_kept_as_its_hash(tmp_path: Path) -> None:
    path = tmp_path / "tokens"

    made = token(path, "new", "--role", "admin", "--name", "ops").output.strip()

    digest = hashlib.sha256(made.encode()).hexdigest()
    assert path.read_text() == f"{digest} admin ops\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    entry = Tokens(path).find(made)
    assert entry is not None
    assert (entry.role, entry.name) == ("admin", "ops")
    assert token(path, "list").output == "admin    ops\n"
    assert Tokens(path).find(made[:-1]) is None


def test_a_token_in_a_file_is_made_once(tmp_path: Path) -> None:
    path, output = tmp_path / "tokens", tmp_path / "admin.token"
    token(path, "new", "--role", "admin", "--output", str(output))
    before = output.read_text(), path.read_text()

    result = token(path, "new", "--role", "admin", "--output", str(output))

    assert result.exit_code == 0
    assert (output.read_text(), path.read_text()) == before
    assert before[0] not in result.output


def test_a_name_is_used_once(tmp_path: Path) -> None:
    token(tmp_path / "tokens", "new", "--role", "admin")

    result = token(tmp_path / "tokens", "new", "--role", "admin")

    assert result.exit_code == 1
    assert "each is used once" in result.stderr


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("admin hunter2\n")

    with pytest.raises(TokensFileError, match="line 1"):
        Tokens(tmp_path / "tokens")


def test_a_file_that_breaks_later_leaves_the_former_tokens_in_use(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "tokens"
    made = token(path, "new", "--role", "read").output.strip()
    known = Tokens(path)

    path.write_text("nonsense\n")

    assert known.find(made) is not None
    assert any(each.message == "tokens.not_reloaded" for each in caplog.records)


def derived(*words: str, **environment: str) -> Result:
    given = {"PARAMFLEET_SECRET": "", **environment}
    return CliRunner().invoke(tokens, ["derive", *words], env=given)


def test_the_token_of_a_secret_is_that_which_the_jobs_processes_take(tmp_path: Path) -> None:
    secret = "s" * 43
    nowhere = str(tmp_path)

    result = derived(
        "--job", "clicks", PARAMFLEET_SECRET=secret, PARAMFLEET_RUNTIME_DIR=nowhere
    )

    assert result.exit_code == 0, result.output
    assert result.output.strip() == JobSecret(secret, "clicks").token("read")


def test_a_token_of_a_secret_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    result = derived("--job", "clicks", PARAMFLEET_RUNTIME_DIR=str(tmp_path))

    assert result.exit_code == 1
    assert "no secret of job clicks is known here" in result.output
    assert "PARAMFLEET_SECRET_FILE" in result.output
