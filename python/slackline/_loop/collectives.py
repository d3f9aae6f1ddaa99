"""Collectives of scripts: what each worker brings, as bytes, and what all make of it.

Workers bring bytes and get those of all, so each computes the result itself, in
the order of ranks, and all have the same bits. Nothing from another worker is
executed: tensors are their bytes, all else is JSON.
"""

from __future__ import annotations

import json
import math
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union

import torch

from slackline._tensors import files

Value = Union[torch.Tensor, float, int, bool, str, None, List[Any], Dict[str, Any]]
# By rank, what each worker has brought.
Brought = List[Tuple[int, bytes]]

_TYPES = files.TYPES
_OPS = ("sum", "mean", "min", "max", "product")


def _kind(value: Value) -> str:
    """What has to be equal on all workers for a reduction."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).replace('torch.', '')}{list(value.shape)}"
    return "a number"


def _check_json(call: str, value: Any) -> None:
    if value is None or isinstance(value, (bool, int, float, str)):
        return
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_json(call, item)
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        for item in value.values():
            _check_json(call, item)
    else:
        raise ValueError(
            f"{call}: a {type(value).__name__} cannot be sent; tensors, numbers, strings, None, and "
            "lists and dicts of them with strings as keys (without tensors inside) can"
        )


def pack(call: str, described: str, value: Value) -> bytes:
    """What a worker brings. ``described`` has to be equal on all workers."""
    head: Dict[str, Any] = {"call": described}
    body = b""
    if isinstance(value, torch.Tensor):
        if value.dtype not in _TYPES:
            raise ValueError(f"{call}: a tensor of {value.dtype} cannot be sent")
        flat = files.bytes_of(value)
        head["dtype"], head["shape"] = _TYPES[value.dtype], list(value.shape)
        body = bytes(files.memory_of(flat))
    else:
        _check_json(call, value)
        head["value"] = value
    return json.dumps(head).encode() + b"\n" + body


def _unpack(call: str, rank: int, data: bytes) -> Tuple[str, Value]:
    """The description and the value. Raises ValueError for what pack() did not make."""

    def damaged(what: str) -> ValueError:
        return ValueError(f"{call}: what worker {rank} has sent is damaged: {what}")

    end = data.find(b"\n")
    try:
        head = json.loads(data[:end].decode()) if end >= 0 else None
    except ValueError as error:
        raise damaged(f"its head is not JSON ({error})") from None
    if not isinstance(head, dict) or not isinstance(head.get("call"), str):
        raise damaged("it has no head")
    if "value" in head:
        return head["call"], head["value"]
    body = data[end + 1 :]
    shape, dtype = head.get("shape"), files.NAMES.get(head.get("dtype", ""))
    if dtype is None or not isinstance(shape, list) or not all(
        type(n) is int and n >= 0 for n in shape
    ):
        raise damaged("it is no tensor")
    if math.prod(shape) * torch.empty(0, dtype=dtype).element_size() != len(body):
        raise damaged(f"{len(body)} bytes do not make a tensor of shape {shape}")
    flat = torch.empty(math.prod(shape), dtype=dtype)
    if body:
        flat.view(torch.uint8).copy_(torch.frombuffer(bytearray(body), dtype=torch.uint8))
    return head["call"], flat.reshape(shape)


def unpack(call: str, described: str, brought: Brought) -> List[Tuple[int, Value]]:
    """The value of each rank. Raises ValueError, on all workers, if they do not call the same."""
    values = [(rank, *_unpack(call, rank, data)) for rank, data in brought]
    calls: Dict[str, List[int]] = {}
    for rank, of_rank, _ in values:
        calls.setdefault(of_rank, []).append(rank)
    if set(calls) != {described}:
        who = "; ".join(
            f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}: {name}"
            for name, ranks in calls.items()
        )
        raise ValueError(
            f"{call}: the workers have called different collectives at this place of the script: "
            f"{who}; all have to make the same calls in the same order"
        )
    return [(rank, value) for rank, _, value in values]


def describe_reduction(value: Value, op: str) -> str:
    """Raises ValueError for what cannot be reduced."""
    call = "job.all_reduce()"
    if op not in _OPS:
        raise ValueError(f"{call}: op is '{op}'; one of {', '.join(_OPS)} is required")
    if isinstance(value, torch.Tensor):
        if value.dtype not in _TYPES:
            raise ValueError(f"{call}: a tensor of {value.dtype} cannot be reduced")
        if value.dtype == torch.bool and op not in ("min", "max"):
            raise ValueError(
                f"{call}: the {op} of torch.bool; give x.long(), or op='max' for any, 'min' for all"
            )
        if op == "mean" and not value.dtype.is_floating_point:
            raise ValueError(f"{call}: the mean of {value.dtype}; give x.double()")
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(
            f"{call}: a {type(value).__name__} cannot be reduced; give a tensor or a number, or use "
            "job.all_gather()"
        )
    return f"all_reduce({_kind(value)}, {op})"


def reduce(values: Sequence[Any], op: str) -> Any:
    """The values of all ranks, in their order."""
    if isinstance(values[0], torch.Tensor):
        steps: Dict[str, Callable[[Any, Any], Any]] = {
            "sum": torch.add,
            "mean": torch.add,
            "min": torch.minimum,
            "max": torch.maximum,
            "product": torch.mul,
        }
    else:
        steps = {
            "sum": lambda a, b: a + b,
            "mean": lambda a, b: a + b,
            "min": lambda a, b: a if a != a else (b if b != b else min(a, b)),
            "max": lambda a, b: a if a != a else (b if b != b else max(a, b)),
            "product": lambda a, b: a * b,
        }
    result = values[0]
    for value in values[1:]:
        result = steps[op](result, value)
    return result / len(values) if op == "mean" else result
