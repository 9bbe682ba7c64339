"""What the rows of a table start from."""

from paramfleet_shared.tables.spec import InitializerSpec

__all__ = ["constant", "normal", "uniform"]


def normal(mean: float = 0.0, std: float = 1.0) -> InitializerSpec:
    """Return an initializer of normally distributed values, as in torch's embeddings."""
    return InitializerSpec(kind="normal", mean=mean, std=std)


def uniform(low: float, high: float) -> InitializerSpec:
    """Return an initializer of values that are uniformly distributed in [low, high)."""
    return InitializerSpec(kind="uniform", low=low, high=high)


def constant(value: float) -> InitializerSpec:
    """Return an initializer that gives all rows the same value."""
    return InitializerSpec(kind="constant", value=value)
