"""What is said to people, and written to the records of a run."""

from __future__ import annotations

import sys
from typing import Any

import torch

# Of a text of the script's in the summary of the run.
_TEXT_BYTES_MAX = 8192


def warn(rank: int, text: str) -> None:
    """A sentence of this worker for its log and the terminal."""
    print(f"slackline: warning: worker {rank}: {text}", file=sys.stderr, flush=True)


def shortened(text: str) -> str:
    """A text of the script's for the records of the run: its begin and its end."""
    data = text.encode("utf-8", "replace")
    if len(data) > _TEXT_BYTES_MAX:
        half = _TEXT_BYTES_MAX // 2 - 32
        data = data[:half] + b"\n... (shortened here) ...\n" + data[-half:]
    return data.decode("utf-8", "ignore")


def number(name: str, value: Any) -> float:
    """A figure of the script's. Raises ValueError for a tensor with several values."""
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"'{name}' has {value.numel()} values; one is required")
        return float(value.detach())
    return float(value)
