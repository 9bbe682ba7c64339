"""``paramfleet tables``: shows those of a running job, and has rows of them go."""

from paramfleet_worker.app.commands.grouping import group_of
from paramfleet_worker.app.commands.operating import SHOW_TABLES, SHRINK_TABLES

__all__ = ["tables"]

tables = group_of(
    "tables",
    SHOW_TABLES,
    "Show the tables over all pservers, and the shards that are used most; or have rows go.",
)
tables.add_command(SHRINK_TABLES, "shrink")
