"""Collective mode: dense models on several devices, with torch.distributed and no servers."""
