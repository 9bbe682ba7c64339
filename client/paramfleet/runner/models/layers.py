"""Layers that several models of the zoo have."""

import itertools

import torch

__all__ = ["tower"]


def tower(*widths: int) -> torch.nn.Sequential:
    """Return linear layers from each width to the next, a ReLU after each."""
    layers: list[torch.nn.Module] = []
    for width_in, width_out in itertools.pairwise(widths):
        layers += [torch.nn.Linear(width_in, width_out), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)
