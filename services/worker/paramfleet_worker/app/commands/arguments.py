"""What commands that look at folders take, and how they answer."""

import json
import math
from pathlib import Path
from typing import Any

import click
from typing_extensions import override

from paramfleet_shared.files.addresses import place_of
from paramfleet_shared.values.texts import printable
from paramfleet_worker.app.commands.outcomes import WorkingFolderError, check_working_folder

__all__ = ["FOLDER", "JSON", "FiniteRange", "counted", "show"]


class _Folder(click.ParamType[Path]):
    """A folder of this machine, or an address such as s3://bucket/kept."""

    name = "path"

    @override
    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        del param
        try:
            check_working_folder()
        except WorkingFolderError as error:
            raise click.UsageError(str(error), ctx) from error
        return place_of(value)


class FiniteRange(click.FloatRange):
    """A number in a range. What isn't a number isn't in one, and infinity isn't either."""

    @override
    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number that can be counted to", param, ctx)
        return number


FOLDER = _Folder()
JSON = click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")


def counted(number: int, what: str) -> str:
    """Return a number and what it counts, as in ``2 rows``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def show(answer: Any, lines: list[str], *, as_json: bool) -> None:
    """Write an answer as JSON, or as lines."""
    shown = "\n".join(printable(line, lines=False) for line in lines)
    click.echo(json.dumps(answer) if as_json else shown)
