"""What the rows of a table start from."""

from paramfleet_shared.tables.spec import InitializerSpec

__all__ = ["constant", "normal", "uniform"]


def normal(mean: float = 0.0, std: float = 1.0) -> InitializerSpec:
    """Rows start normally distributed, as torch's embeddings do."""
    return InitializerSpec(kind="normal", mean=mean, std=std)


def uniform(low: float, high: float) -> InitializerSpec:
    """Rows start uniformly distributed in [low, high)."""
    return InitializerSpec(kind="uniform", low=low, high=high)


def constant(value: float) -> InitializerSpec:
    """Rows start at one value."""
    return InitializerSpec(kind="constant", value=value)
