"""In which groups ``paramfleet launch --help`` shows its options, and in which order."""

from collections.abc import Iterable

from paramfleet_shared.settings.config import Option
from paramfleet_shared.settings.option_groups import OptionGroup, group_of_setting

__all__ = ["in_groups"]

_GROUPS = {
    "What to start": (
        "server_num", "worker_num", "gpus", "job", "resume", "checkpoint_dirs", "share_imports",
    ),
    "What to show": ("log_dir", "open", "verbose", "quiet"),
    "When a process dies": (
        "replicas", "data_dir", "durability", "max_restarts", "rerun_script", "elastic",
        "chaos",
    ),
    "Several machines": ("servers", "workers", "coordinator", "redis", "host_ip"),
    "Ray": ("on", "ray_cpus", "ray_gpus"),
    "Collective jobs, without pservers": ("nproc_per_node", "ips", "master_port"),
}  # fmt: skip


def in_groups(options: Iterable[Option]) -> list[tuple[Option, OptionGroup | None]]:
    """Return options with their groups, in the order in which they are shown."""
    by_name = {option.name: option for option in options}
    grouped: list[tuple[Option, OptionGroup | None]] = []
    for title, names in _GROUPS.items():
        group = OptionGroup(title)
        grouped += [(by_name.pop(name), group) for name in names if name in by_name]
    return [*grouped, *((option, group_of_setting(name)) for name, option in by_name.items())]
