"""Numbers over the workers of a step: sums, and norms of the merged gradient."""
