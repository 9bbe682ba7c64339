"""``paramfleet tables``: shows those of a running job, and has rows of them go."""

from paramfleet_worker.app.commands.grouping import group_of
from paramfleet_worker.app.commands.operating import SHOW_TABLES, SHRINK_TABLES

__all__ = ["tables"]

tables = group_of(
    "tables",
    SHOW_TABLES,
    "Show the tables of a job, or remove rows from them.\n\nWithout a command it shows the "
    "tables, and the shards that are used most.",
)
tables.add_command(SHRINK_TABLES, "shrink")
