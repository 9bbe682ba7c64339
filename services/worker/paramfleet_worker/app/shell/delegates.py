"""Commands of other packages: their modules are imported when they run or are completed."""

from collections.abc import Callable

import click
from typing_extensions import override

from paramfleet_shared.settings.cli import BoundedCommand, BoundedGroup, with_dashes

__all__ = ["LazyGroup"]

Load = Callable[[], click.Command]


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


_SECTIONS = {
    "Train": ("demo", "new", "launch", "train", "infer", "plan", "doctor"),
    "Look at a running job": (
        "status",
        "top",
        "page",
        "workers",
        "tables",
        "barriers",
        "audit",
    ),
    "Control a running job": ("set", "pause", "resume", "scale", "drain", "end"),
    "Checkpoints, exports and serving": ("checkpoint", "export", "data", "delta", "serve"),
    "Start processes separately": ("coordinator", "pserver", "worker"),
    "Security": ("secret", "certs", "tokens"),
    "Test recovery": ("verify", "chaos"),
    "Other": ("completion",),
}
"""Which commands ``paramfleet --help`` shows together, and in which order."""


class LazyGroup(BoundedGroup):
    """A group with commands of other packages."""

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands in groups; those of no group stand in the last one."""
        left = dict(self.commands)
        sections = {
            title: [left.pop(name) for name in names if name in left]
            for title, names in _SECTIONS.items()
        }
        sections["Other"] += left.values()
        limit = formatter.width - 6 - max(map(len, self.commands))
        for title, commands in sections.items():
            shown = [each for each in commands if not each.hidden]
            if shown:
                with formatter.section(title):
                    formatter.write_dl(
                        [(each.name or "", each.get_short_help_str(limit)) for each in shown],
                        col_max=20,
                    )

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
