"""Where a loader is, for what reads it ahead: as of the batch that was yielded last."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from paramfleet.nn.watching import PrefetchError

__all__ = ["ReadAhead"]

B = TypeVar("B")


class ReadAhead(Generic[B]):
    """What yields a loader's batches, having read further ones.

    Args:
        loader: The batches.
    """

    def __init__(self, loader: Iterable[B]) -> None:
        self._loader = loader
        self._state: Any = None
        """Of the loader behind the batch that was yielded last; None if that is its own."""
        self._has_state = hasattr(loader, "state_dict")

    def state_dict(self) -> Any:
        """Return the loader's state as of the batch that was yielded last.

        Raises:
            PrefetchError: if the loader has no ``state_dict``.
        """
        self._stateful("state_dict")
        return self._loader.state_dict() if self._state is None else self._state  # type: ignore[attr-defined]  # it has one

    def load_state_dict(self, state: Any) -> None:
        """Let the loader go on where a state was taken.

        Raises:
            PrefetchError: if the loader has no ``load_state_dict``.
        """
        self._stateful("load_state_dict")
        self._state = None
        self._loader.load_state_dict(state)  # type: ignore[attr-defined]  # it has one

    @property
    def reshard(self) -> Callable[[Sequence[Any], int, int], Any] | None:
        """What returns the loader's state after workers of another number; None without one."""
        return getattr(self._loader, "reshard", None)

    def __len__(self) -> int:
        """Return the number of batches, if the loader knows it."""
        return len(self._loader)  # type: ignore[arg-type]  # TypeError, as of the loader

    def _with_states(self, batches: Iterator[B]) -> Iterator[tuple[B, Any]]:
        """Yield each batch with the loader's state behind it; None if it has none."""
        for batch in batches:
            yield batch, self._loader.state_dict() if self._has_state else None  # type: ignore[attr-defined]  # it has

    def _stateful(self, name: str) -> None:
        if not hasattr(self._loader, name):
            rule = f"a {type(self._loader).__name__} has no {name}, so that nothing is saved"
            raise PrefetchError(option="loader", value=type(self._loader).__name__, rule=rule)
