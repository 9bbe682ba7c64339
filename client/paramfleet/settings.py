"""Settings of a worker."""

from dataclasses import dataclass

from paramfleet_shared.config import JobSettings, SettingError, read_environment, resolve

__all__ = ["WorkerSettings", "read_settings"]


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSettings(JobSettings):
    """What a worker reads beside them.

    Raises:
        SettingError: if a value is outside its documented range.
    """

    bind: str = ""
    """Address to listen on; empty listens on host."""

    admin_port: int = 0
    """Port of the admin address; 0 picks a free one."""

    dense_request_bytes: int = 64 << 20
    """Bytes of dense values that one request to a pserver carries; more go in pieces of a
    fourth of it, which take longer but hold nobody up."""

    visual_path: str = ""
    """Folder of TensorBoard files about LocalSGD's exchanges, with one for each worker; empty
    writes none."""

    def __post_init__(self) -> None:
        JobSettings.__post_init__(self)
        if not 0 <= self.admin_port < 1 << 16:
            raise SettingError(name="admin_port", value=self.admin_port, rule="0 to 65535")
        if not 1 << 12 <= self.dense_request_bytes <= 128 << 20:
            rule = "4096 to 134217728"
            value = self.dense_request_bytes
            raise SettingError(name="dense_request_bytes", value=value, rule=rule)


def read_settings(*, host: str | None) -> WorkerSettings:
    """Return this process's settings, of its environment.

    Args:
        host: Goes before the environment's; None for the environment's.

    Raises:
        SettingError: if a value is wrong.
        UnknownSettingError: if nothing reads one.
    """
    return resolve(
        WorkerSettings,
        section="worker",
        arguments={"host": host},
        environment=read_environment(),
    ).value
