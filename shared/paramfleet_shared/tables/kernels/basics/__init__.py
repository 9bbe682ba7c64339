"""What all kernels use: compilation, vectors of floats, hashes, sorting."""
