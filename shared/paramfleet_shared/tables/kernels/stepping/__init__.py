"""Kernels that step rows by a rule."""
