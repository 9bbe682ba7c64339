"""Plain values and their texts: ids, amounts, bounds, versions."""
