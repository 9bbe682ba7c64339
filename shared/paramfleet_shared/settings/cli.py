"""A command line from a settings class, the same for every service."""

import contextlib
import re
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, TypeVar

import click
from typing_extensions import override

from paramfleet_shared.errors import ContractError, FleetError
from paramfleet_shared.settings.config import (
    Option,
    Resolved,
    options_of,
    read_environment,
    resolve,
)
from paramfleet_shared.settings.option_groups import (
    GroupedOption,
    group_of_setting,
    write_options,
)
from paramfleet_shared.values.texts import all_near, printable, shortened

__all__ = [
    "BoundedCommand",
    "BoundedGroup",
    "click_type",
    "echo",
    "in_red",
    "settings_command",
    "with_dashes",
    "with_default",
]

T = TypeVar("T")

MAX_MESSAGE = 2000
"""Characters of what is said about a command line."""

_FOR_CALLERS = re.compile(r"^ *(?:Args|Raises|Returns|Yields):$", re.MULTILINE)
"""The first line of a docstring's sections."""


def with_dashes(token: str) -> str:
    """Take ``--worker_num``, as Fleet spells it, for ``--worker-num``."""
    return token.replace("_", "-")


def echo(text: str, *, err: bool = False) -> None:
    """Write lines to standard output or error, with control characters escaped."""
    click.echo(printable(text), err=err)


class _Bounded(click.Command):
    """A command whose errors repeat only the beginning of what it was given.

    Its help is its function's docstring, without what that says to who calls the function.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.help = self.help and _FOR_CALLERS.split(self.help)[0].rstrip()

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_options(self.get_params(ctx), ctx, formatter)
        if isinstance(self, click.Group):
            self.format_commands(ctx, formatter)

    @override
    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        with _bounded():
            return super().make_context(*args, **kwargs)

    @override
    def invoke(self, ctx: click.Context) -> Any:
        with _bounded():
            return super().invoke(ctx)


class BoundedCommand(_Bounded):
    """As ``click.Command``; its errors are bounded and hold no control characters."""


class BoundedGroup(_Bounded, click.Group):
    """As ``click.Group``; its errors are bounded and hold no control characters."""

    command_class: type[click.Command] | None = BoundedCommand

    @override
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        """Return the command that words begin with.

        Raises:
            UsageError: if there is none of that name; it says which one may be meant.
            NoSuchOption: if the first word is an option.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.NoSuchOption:
            raise
        except click.UsageError as error:
            near = [repr(name) for name in all_near(args[0], self.list_commands(ctx))]
            text = f"there is no command {args[0]!r}{_question(near)}"
            raise click.UsageError(text, ctx) from error


class _WrongWordsError(click.UsageError):
    """A command line that can't be meant: says why, and then how it is used."""

    @override
    def show(self, file: IO[Any] | None = None) -> None:
        file = file or sys.stderr
        color = None if self.ctx is None else self.ctx.color
        click.echo(in_red(f"Error: {self.format_message()}", file), file=file, color=color)
        if self.ctx is None:
            return
        click.echo(self.ctx.get_usage(), file=file, color=color)
        if self.ctx.command.get_help_option(self.ctx) is not None:
            hint = f"Try '{self.ctx.command_path} {self.ctx.help_option_names[0]}' for help."
            click.echo(hint, file=file, color=color)


def in_red(text: str, file: IO[Any]) -> str:
    """Return the text of an error for a file: red in a terminal, unless ``NO_COLOR`` is set."""
    if not file.isatty() or read_environment().get("NO_COLOR"):
        return text
    return click.style(text, fg="red", bold=True)


@contextlib.contextmanager
def _bounded() -> Iterator[None]:
    """Raise click's errors with a bounded text, those of a command line with the cause first.

    Raises:
        _WrongWordsError: for a ``UsageError``.
        NoArgsIsHelpError: as it is.
        ClickException: for another.
    """
    try:
        yield
    except click.exceptions.NoArgsIsHelpError:  # it is the help itself
        raise
    except click.ClickException as error:
        said = _in_our_words(error)
        text = shortened(printable(said), MAX_MESSAGE)
        if isinstance(error, click.UsageError):
            raise _WrongWordsError(text, error.ctx) from error.__cause__
        if text == said:
            raise
        raise click.ClickException(text) from None


def _in_our_words(error: click.ClickException) -> str:
    """Return an error's text; that of an unknown option with those that may be meant."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error.format_message()
    by_dashes = {
        with_dashes(name).lstrip("-"): name
        for parameter in error.ctx.command.get_params(error.ctx)
        for name in (*reversed(parameter.opts), *parameter.secondary_opts)
        if name.startswith("--")
    }
    typed = error.option_name
    near = [by_dashes[name] for name in all_near(with_dashes(typed).lstrip("-"), by_dashes)]
    return f"there is no option {typed}{_question(near)}"


def _question(near: list[str]) -> str:
    return f": did you mean {' or '.join(near)}?" if near else ""


def settings_command(
    cls: type[T],
    *,
    name: str,
    section: str,
    help: str,  # noqa: A002 (click's own word)
    run: Callable[[Resolved[T]], int],
) -> click.Command:
    """Return a click command with one option per setting of ``cls`` and ``--config FILE``.

    Secrets have none: everybody on the machine sees a command line.

    Args:
        cls: The settings class.
        name: The command's name in its usage line.
        section: The service's name in the environment and in the file.
        help: The command's first sentences.
        run: Gets the resolved settings; what it returns is the exit status. A
            ``FleetError`` it raises is printed as one line and the status is 1.
    """

    def callback(config: Path | None, **arguments: Any) -> None:
        try:
            resolved = resolve(
                cls,
                section=section,
                arguments=arguments,
                environment=read_environment(),
                file=config,
            )
        except ContractError as error:
            raise click.UsageError(str(error)) from error
        try:
            status = run(resolved)
        except FleetError as error:
            echo(f"{name}: {error}", err=True)
            status = 1
        sys.exit(status)

    file = click.Option(
        ["--config"],
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        envvar="PARAMFLEET_CONFIG",
        help="TOML file of settings.",
    )
    options = [_option(option) for option in options_of(cls) if not option.secret]
    return BoundedCommand(name, params=[*options, file], callback=callback, help=help)


def _option(option: Option) -> click.Option:
    """Return the click option; it has no default, so that a given value is known as such."""
    spellings = [option.name]  # as Fleet's own options are spelled
    if "_" in option.name:
        spellings.append(with_dashes(option.name))
    declared = [f"--{each}/--no-{each}" if option.type is bool else f"--{each}"
                for each in spellings]  # fmt: skip
    if option.flag:
        declared.insert(0, f"--{option.flag}")
    return GroupedOption(
        [*declared, option.name],
        type=click_type(option.type),
        default=None,
        help=with_default(option),
        group=group_of_setting(option.name),
    )


def with_default(option: Option) -> str:
    """Return an option's sentences, and its default if it has one."""
    if option.default is None or option.default == "":
        return option.help
    default = "required" if option.default is ... else f"default: {option.default}"
    return f"{option.help}  [{default}]"


def click_type(kind: Any) -> Any:
    """Return what click takes for an option's type."""
    if typing.get_origin(kind) is Literal:
        return click.Choice([str(choice) for choice in typing.get_args(kind)])
    return click.Path(path_type=Path) if kind is Path else kind
