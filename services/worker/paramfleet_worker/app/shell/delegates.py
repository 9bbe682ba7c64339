"""Commands of other packages: their modules are imported when they run or are completed."""

from collections.abc import Callable

import click
from typing_extensions import override

from paramfleet_shared.settings.cli import BoundedCommand, BoundedGroup

__all__ = ["LazyGroup", "with_dashes"]

Load = Callable[[], click.Command]


def with_dashes(token: str) -> str:
    """Take ``--worker_num``, as Fleet spells it, for ``--worker-num``."""
    return token.replace("_", "-")


class _Delegate(BoundedCommand):
    """A command that hands all of its words to another one.

    Args:
        name: Of the command.
        load: Imports the other one.
        prepare: Called with the words before it runs.
    """

    def __init__(
        self, name: str, load: Load, prepare: Callable[[tuple[str, ...]], None] | None
    ) -> None:
        super().__init__(
            name,
            params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
            callback=self._run,
            help=load.__doc__,
            add_help_option=False,
            context_settings={
                "ignore_unknown_options": True,
                "allow_interspersed_args": False,
            },
        )
        self.load = load
        self._prepare = prepare

    def _run(self, arguments: tuple[str, ...]) -> None:
        if self._prepare is not None:
            self._prepare(arguments)
        self.load().main(
            list(arguments),
            prog_name=f"paramfleet {self.name}",
            token_normalize_func=with_dashes,
        )


class LazyGroup(BoundedGroup):
    """A group with commands of other packages."""

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command; where a shell completes, the one that it stands for."""
        command = super().get_command(ctx, cmd_name)
        if ctx.resilient_parsing and isinstance(command, _Delegate):
            return command.load()
        return command

    def delegate(
        self, name: str, *, prepare: Callable[[tuple[str, ...]], None] | None = None
    ) -> Callable[[Load], Load]:
        """Make a function that imports a command one of this group; its docstring is the help.

        Args:
            name: Of the command.
            prepare: Called with its words before it runs.
        """

        def add(load: Load) -> Load:
            self.add_command(_Delegate(name, load, prepare))
            return load

        return add
