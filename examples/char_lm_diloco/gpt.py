"""A small GPT over characters: Radford et al., 2019, with pre-normalisation and GELU."""

import torch
from typing_extensions import override

__all__ = ["Gpt"]


class _Block(torch.nn.Module):
    """Causal attention and a layer of each position, each beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        self.queries_keys_values = torch.nn.Linear(width, 3 * width)
        self.merged = torch.nn.Linear(width, width)
        self.layer = torch.nn.Sequential(
            torch.nn.Linear(width, 4 * width),
            torch.nn.GELU(),
            torch.nn.Linear(4 * width, width),
        )

    @override
    def forward(self, states_BTW: torch.Tensor) -> torch.Tensor:
        split = self.queries_keys_values(self.norms[0](states_BTW)).chunk(3, dim=-1)
        queries, keys, values = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in split
        )
        seen = torch.nn.functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=True
        )
        states_BTW = states_BTW + self.merged(seen.transpose(1, 2).flatten(2))
        changed: torch.Tensor = states_BTW + self.layer(self.norms[1](states_BTW))
        return changed


class Gpt(torch.nn.Module):
    """Tells the next character.

    Shape legend: B = batch, T = positions, W = width, V = characters there are.

    Args:
        vocabulary: V.
        context: The most positions T.
        width: W.
        depth: Blocks.
        heads: Of each block.
    """

    def __init__(
        self, vocabulary: int, context: int, *, width: int = 64, depth: int = 2, heads: int = 4
    ) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(vocabulary, width)
        self.positions = torch.nn.Embedding(context, width)
        self.blocks = torch.nn.Sequential(*(_Block(width, heads) for _ in range(depth)))
        self.norm = torch.nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Embedding):
                torch.nn.init.normal_(module.weight, std=0.05)
            if isinstance(module, torch.nn.Linear):
                torch.nn.init.zeros_(module.bias)

    @override
    def forward(self, ids_BT: torch.Tensor) -> torch.Tensor:
        """Return logits float32 [B, T, V] of the characters behind int64 [B, T]."""
        positions = torch.arange(ids_BT.shape[1], device=ids_BT.device)
        states_BTW = self.characters(ids_BT) + self.positions(positions)
        states_BTW = self.norm(self.blocks(states_BTW))
        logits: torch.Tensor = states_BTW @ self.characters.weight.T
        return logits
