"""``paramfleet tokens``: makes, lists, revokes and derives the tokens of admin addresses."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, cast, get_args

import click

from paramfleet_serving.jobs.finding import found_settings
from paramfleet_shared.errors import ContractError
from paramfleet_shared.files.job_folder import write_private
from paramfleet_shared.net.secret import MIN_SECRET_LENGTH, JobSecret
from paramfleet_shared.net.tokens import TokenRole, new_token, read_tokens
from paramfleet_shared.settings.cli import BoundedGroup, echo
from paramfleet_shared.settings.config import JobSettings, read_environment, resolve

__all__ = ["tokens"]

FILE = click.option(
    "--file",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="PARAMFLEET_TOKENS_FILE",
    required=True,
    help="File of the tokens' hashes, which the setting tokens_file names.",
)


@click.group(cls=BoundedGroup)
def tokens() -> None:
    """Create, list, revoke and derive tokens for admin addresses."""


@tokens.command()
@FILE
@click.option("--role", required=True, type=click.Choice(get_args(TokenRole)))
@click.option("--name", default="", help="Its name in the audit log; by default the role.")
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token to this file, with mode 0600, instead of standard output.",
)
def new(path: Path, role: str, name: str, output: Path | None) -> None:
    """Create a token and print it. Only its hash is stored, so it can't be shown again.

    With --output, an existing token is kept.
    """

    def run() -> None:
        kept = read_tokens(path) if path.exists() else []
        label = name or role
        if output is not None and output.exists() and label in [each.name for each in kept]:
            echo(f"{label}: kept", err=True)
            return
        if label in [each.name for each in kept] or len(label.split()) != 1:
            problem = f"{label!r}: names are one word, and each is used once"
            raise click.ClickException(problem)
        token, entry = new_token(cast("TokenRole", role), label)
        lines = "".join(each.to_line() for each in (*kept, entry))
        write_private(path, lines.encode())
        if output is None:
            echo(token)
        else:
            write_private(output, token.encode())

    _told(run)


@tokens.command("list")
@FILE
def list_(path: Path) -> None:
    """List the names and roles of the tokens."""

    def run() -> None:
        for entry in read_tokens(path):
            echo(f"{entry.role:8} {entry.name}")

    _told(run)


@tokens.command()
@FILE
@click.argument("name")
def revoke(path: Path, name: str) -> None:
    """Revoke a token; running processes no longer accept it."""

    def run() -> None:
        kept = read_tokens(path)
        left = [each for each in kept if each.name != name]
        if len(left) == len(kept):
            problem = f"there is no token named {name!r}"
            raise click.ClickException(problem)
        write_private(path, "".join(each.to_line() for each in left).encode())

    _told(run)


@tokens.command()
@click.option(
    "--role",
    default="read",
    show_default=True,
    type=click.Choice(["read", "admin"]),
    help="What the token is for.",
)
@click.option("--job", help="The job; by default PARAMFLEET_JOB.")
def derive(role: str, job: str | None) -> None:
    """Print the token that a job's secret stands for.

    Its processes accept it unless they have a file of tokens. The secret is that of
    PARAMFLEET_SECRET_FILE, or of a job of this name that you launched on this machine.
    """

    def run() -> None:
        given = {} if job is None else {"job": job}
        environment = read_environment()
        settings = resolve(JobSettings, section="", arguments=given, environment=environment)
        found = found_settings(settings.value)
        if len(found.secret) < MIN_SECRET_LENGTH:
            problem = (
                f"no secret of job {found.job} is known here: name its file in "
                "PARAMFLEET_SECRET_FILE, or run this where you launched the job"
            )
            raise click.ClickException(problem)
        echo(JobSecret(found.secret, found.job).token(cast("Literal['read', 'admin']", role)))

    _told(run)


def _told(run: Callable[[], None]) -> None:
    """Run a command; an error is printed in one line.

    Raises:
        ClickException: for any error that has a sentence.
    """
    try:
        run()
    except (ContractError, OSError) as error:
        raise click.ClickException(str(error)) from error
