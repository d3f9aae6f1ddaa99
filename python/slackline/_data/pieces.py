"""A batch from its pieces, which the processes of a DataLoader load side by side.

Pieces that default_collate() has made are put together to what it makes of the whole
batch. A collate_fn of the script's own has to see all examples of a batch at once, so its
pieces are the examples themselves.
"""

from __future__ import annotations

import collections.abc
import copy
import io
import itertools
import pickle
from typing import Any, List, Sequence

import torch

from slackline._tensors import files

_CALL = "job.loader(): elastic=True with num_workers"


def cut(rows: Sequence[int], pieces: int) -> List[List[int]]:
    """At most so many pieces, none of them empty, whose sizes differ by at most one."""
    pieces = min(pieces, len(rows))
    ends = [len(rows) * i // pieces for i in range(pieces + 1)]
    return [list(rows[begin:end]) for begin, end in zip(ends, ends[1:])]


def joined(pieces: Sequence[Any]) -> Any:
    """What default_collate() makes of all examples, from what it has made of each piece.

    Raises TypeError for examples that are of different types.
    """
    first = pieces[0]
    if len(pieces) == 1:
        return first
    if isinstance(first, torch.Tensor):
        types = sorted({str(piece.dtype) for piece in pieces})
        if len(types) > 1:
            raise TypeError(
                f"{_CALL}: one batch has {' and '.join(types)} at the same place of its examples; "
                "have the data set give one type, or give collate_fn"
            )
        return torch.cat(list(pieces))
    if isinstance(first, collections.abc.Mapping):
        whole = {key: joined([piece[key] for piece in pieces]) for key in first}
        if not isinstance(first, collections.abc.MutableMapping):
            return type(first)(whole)  # type: ignore[call-arg]
        mapping = copy.copy(first)
        mapping.update(whole)
        return mapping
    if not isinstance(first, collections.abc.Sequence) or isinstance(first, (str, bytes)):
        raise TypeError(
            f"{_CALL}: batches of {type(first).__name__} cannot be put together; give collate_fn"
        )
    if first and isinstance(first[0], (str, bytes)):
        return type(first)(itertools.chain(*pieces))  # type: ignore[call-arg]
    if len({len(piece) for piece in pieces}) > 1:
        raise RuntimeError("each element in list of batch should be of equal size")
    columns = [joined(column) for column in zip(*pieces)]
    if isinstance(first, tuple) and hasattr(first, "_fields"):
        return type(first)(*columns)
    return type(first)(columns)  # type: ignore[call-arg]


def packed(examples: List[Any]) -> bytes:
    """The examples of a piece. PyTorch would open a file for each tensor of each example."""
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(examples)
    return file.getvalue()


def unpacked(pieces: Sequence[bytes]) -> List[Any]:
    """The examples of all pieces of a batch, which this script's own processes have packed."""
    return [example for piece in pieces for example in pickle.loads(piece)]


class _Pickler(pickle.Pickler):
    """Of a tensor that is a part of a larger one it takes that part only."""

    def reducer_override(self, x: Any) -> Any:
        if type(x) is not torch.Tensor or x.layout != torch.strided or x.is_quantized:
            return NotImplemented
        flat = files.bytes_of(x)
        data = bytearray(files.memory_of(flat))
        return _tensor, (data, x.dtype, tuple(x.shape))


def _tensor(data: bytearray, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
    if not data:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).reshape(shape)
