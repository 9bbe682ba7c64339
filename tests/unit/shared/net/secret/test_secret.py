"""The job's secret: what the settings say of it, and the keys made of it."""

import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from paramfleet_shared.net.secret import (
    JobSecret,
    OpenJobError,
    SecretExistsError,
    new_secret,
    open_warnings,
    secret_of,
    write_secret,
)
from paramfleet_shared.settings.config import JobSettings, Resolved, SettingError, resolve


def test_a_job_without_secret_and_certificates_is_refused_and_says_what_to_do() -> None:
    with pytest.raises(OpenJobError) as refused:
        secret_of(JobSettings(job="flights"))
    for word in ("flights", "PARAMFLEET_SECRET_FILE", "PARAMFLEET_TLS_DIR", "INSECURE"):
        assert word in str(refused.value)


def test_a_job_is_open_only_where_the_settings_say_so() -> None:
    assert secret_of(JobSettings(insecure=True)) is None


def test_certificates_stand_for_the_secret() -> None:
    assert secret_of(JobSettings(tls_dir="tls", secret=new_secret())) is None


def test_a_short_secret_is_refused_and_not_shown() -> None:
    with pytest.raises(SettingError, match="at least 32") as refused:
        secret_of(JobSettings(secret="letmein"))
    assert "letmein" not in str(refused.value)


def test_keys_differ_by_use_by_job_and_by_secret() -> None:
    one = JobSecret("s" * 32, "flights")
    keys = {
        one.key("a"),
        one.key("b"),
        JobSecret("s" * 32, "census").key("a"),
        JobSecret("t" * 32, "flights").key("a"),
    }
    assert len(keys) == 4
    assert all(len(key) == 32 for key in keys)
    assert one.key("a") == JobSecret("s" * 32, "flights").key("a")


def test_a_secret_is_in_no_repr() -> None:
    assert "s" * 32 not in repr(JobSecret("s" * 32, "flights"))


def test_a_secret_s_file_is_its_owner_s_alone_and_none_is_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "secret"

    write_secret(file, "first")

    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(SecretExistsError, match="is there already"):
        write_secret(file, "second")
    assert file.read_text() == "first"


def test_a_job_that_is_open_on_purpose_is_warned_of() -> None:
    (warning,) = open_warnings({}, JobSettings(job="flights", insecure=True), {})

    assert warning.startswith("job flights runs without secret and certificates (insecure): ")
    assert open_warnings({}, JobSettings(insecure=True, tls_dir="tls"), {}) == []
    assert open_warnings({}, JobSettings(insecure=True, secret=new_secret()), {}) == []


def test_a_password_on_a_command_line_is_warned_of_by_the_option() -> None:
    settings = JobSettings(redis="redis://:pw@h/0")

    (warning,) = open_warnings({"redis": "argument"}, settings, {})

    assert warning.startswith("the password in --redis is on a command line")
    assert "PARAMFLEET_REDIS_PASSWORD_FILE" in warning
    assert open_warnings({"redis": "environment PARAMFLEET_REDIS"}, settings, {}) == []


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user of this machine may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def warnings_of(file: Path, mode: int, **settings: str) -> list[str]:
    """Return what is said at start of a secret in a file of this mode."""
    file.write_text("s" * 40)
    file.chmod(mode)
    environment = {"PARAMFLEET_SECRET_FILE": str(file)}
    resolved: Resolved[JobSettings] = resolve(
        JobSettings, section="", arguments=settings, environment=environment
    )
    return open_warnings(resolved.origins, resolved.value, environment)


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o666])
def test_a_file_of_a_secret_that_others_may_read_is_warned_of(
    open_folder: Path, mode: int
) -> None:
    file = open_folder / "secret"

    (warning,) = warnings_of(file, mode)

    assert warning.startswith(f"others may read PARAMFLEET_SECRET_FILE, {file} (mode {mode:o})")
    assert warning.endswith("chmod 600")


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o444])
def test_a_file_of_a_secret_that_is_private_or_mounted_to_be_read_is_not(
    open_folder: Path, mode: int
) -> None:
    assert warnings_of(open_folder / "secret", mode) == []


def test_a_file_of_a_secret_in_a_private_folder_is_not_warned_of(open_folder: Path) -> None:
    open_folder.chmod(0o700)

    assert warnings_of(open_folder / "secret", 0o644) == []


def test_members_do_not_repeat_what_their_launcher_has_said(open_folder: Path) -> None:
    assert warnings_of(open_folder / "secret", 0o644, launch="a1") == []


def test_a_list_of_tokens_holds_no_secret(open_folder: Path) -> None:
    environment = {"PARAMFLEET_TOKENS_FILE": str(open_folder)}

    origins = {"tokens_file": "environment PARAMFLEET_TOKENS_FILE"}
    assert open_warnings(origins, JobSettings(), environment) == []
