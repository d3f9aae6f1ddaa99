"""An order of a script's own: what its sampler draws, alike on all workers."""

from __future__ import annotations

from typing import Any, Iterable, List

import torch


def drawn(order: Iterable[Any], seed: int, epoch: int) -> List[Any]:
    """What a sampler draws for an epoch. The script's own random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed(), which seeds GPUs, too.
        torch.default_generator.manual_seed(seed * 1_000_003 + epoch)
        return list(order)
