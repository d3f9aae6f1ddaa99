"""What all workers of a job have to have alike, beside what the job itself carries.

Each worker brings a few numbers and digests; all get all of them and come to the same
conclusion. Nothing here sends anything.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Dict, List, Mapping, Sequence, Tuple

import torch

from slackline._tensors import files

# Of what is not trained and differs, this much is sent at the start,
SENT_BYTES_MAX = 4 << 20
# in pieces of this size.
PIECE_BYTES = 256 << 10
_NAMED = 3


def some_names(names: Sequence[str]) -> str:
    """The first few, quoted, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(f"'{name}'" for name in names[:_NAMED]) + more


# ---- At the start: what is not trained ---------------------------------------


def untrained(module: torch.nn.Module, trained: Sequence[torch.Tensor]) -> Dict[str, torch.Tensor]:
    """The module's buffers and frozen parameters, by name."""
    known = {id(parameter) for parameter in trained}
    named = {name: p for name, p in module.named_parameters() if id(p) not in known}
    named.update(module.named_buffers())
    return named


def describe(tensors: Mapping[str, torch.Tensor], bytes_max: int) -> Dict[str, List[str]]:
    """Of each its form, which all workers have to have, and a digest of its values.

    Of very many tensors it is one for all of them, so that it has at most ``bytes_max``.
    """
    each = {name: [_form(tensor), _digest(tensor)] for name, tensor in tensors.items()}
    text = json.dumps(each)
    if len(text) <= bytes_max:
        return each
    digest = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return {"all buffers and frozen parameters": [f"{len(each)} tensors", digest]}


def _form(tensor: torch.Tensor) -> str:
    layout = "" if tensor.layout == torch.strided else f" {tensor.layout}"
    return f"{str(tensor.dtype).replace('torch.', '')}{list(tensor.shape)}{layout}"


def _digest(tensor: torch.Tensor) -> str:
    """Of a tensor of an uncommon layout it may be empty, which is compared with nothing."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        try:
            tensor = tensor.dequantize() if tensor.is_quantized else tensor.to_dense()
        except RuntimeError:
            return ""
    if tensor.device.type == "meta":
        return ""
    data = files.bytes_of(tensor)
    return hashlib.blake2b(files.memory_of(data), digest_size=8).hexdigest()


def differing(described: Sequence[Tuple[int, Dict[str, List[str]]]]) -> List[str]:
    """Names of what does not have the values of the first worker everywhere.

    Raises ValueError if they have not all the same tensors.
    """
    first_rank, first = described[0]
    names = set()
    for rank, theirs in described[1:]:
        for name in [*first, *(name for name in theirs if name not in first)]:
            mine, other = (of.get(name, ["no such tensor", ""]) for of in (first, theirs))
            if mine[0] != other[0]:
                raise ValueError(
                    f"job.model(): '{name}', which is not trained, is {mine[0]} on worker {first_rank} and "
                    f"{other[0]} on worker {rank}; all workers must build the same model"
                )
            if mine[1] and other[1] and mine[1] != other[1]:
                names.add(name)
    return [name for name in first if name in names]


def check_sendable(names: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raises ValueError if they cannot be sent to those who have others."""
    unknown = [name for name in names if name not in tensors]
    if unknown:
        raise ValueError(
            f"job.model(): {some_names(unknown)}, which are not trained, differ between workers; load or make "
            "them alike on all workers"
        )
    size = sum(tensors[name].numel() * tensors[name].element_size() for name in names)
    odd = [n for n in names if tensors[n].layout != torch.strided or tensors[n].is_quantized]
    if not odd and size <= SENT_BYTES_MAX:
        return
    why = (
        f"{some_names(odd)} cannot be sent"
        if odd
        else f"they have {size / 2**20:.1f} MiB, and {SENT_BYTES_MAX >> 20} MiB can be sent"
    )
    raise ValueError(
        f"job.model(): {some_names(names)}, which are not trained, differ between workers, and {why} at "
        "the start; load or make them alike on all workers"
    )


def pieces(names: Sequence[str], tensors: Mapping[str, torch.Tensor]) -> List[torch.Tensor]:
    """Their bytes, one after the other, cut into pieces that can be sent."""
    flat = torch.cat([files.bytes_of(tensors[name]) for name in names])
    return list(flat.split(PIECE_BYTES))


def take(names: Sequence[str], tensors: Mapping[str, torch.Tensor], flat: torch.Tensor) -> None:
    """The other way: gives them the values of these bytes."""
    place = 0
    with torch.no_grad():
        for name in names:
            tensor = tensors[name]
            size = tensor.numel() * tensor.element_size()
            tensor.copy_(files.tensor_of(flat[place : place + size], tensor.dtype, tensor.shape))
            place += size


# ---- Orders of samplers -------------------------------------------------------


def check_order(digests: Sequence[Tuple[int, str]]) -> None:
    """``digests`` of what each worker's sampler has drawn. Raises ValueError if they differ."""
    for rank, digest in digests[1:]:
        if digest != digests[0][1]:
            raise ValueError(
                f"job.loader(): the sampler of worker {rank} has drawn another order than that of worker "
                f"{digests[0][0]}, and each takes its part of one order. Take random numbers of random, NumPy "
                "or PyTorch, which are seeded alike for each draw, or a generator with a seed of its own, and "
                "nothing that differs between workers"
            )


# ---- In a step by all-reduce: replicas ---------------------------------------


def check_replicas(step: int, totals: Sequence[Tuple[int, Dict[str, int]]]) -> None:
    """``totals``: of each worker, and each parameter by name. Raises RuntimeError naming a parameter."""
    first_rank, first = totals[0]
    for rank, theirs in totals[1:]:
        for name in first:
            if theirs.get(name) != first[name]:
                raise RuntimeError(
                    f"step {step}: parameter '{name}' is not the same on workers {first_rank} and {rank}. By "
                    "all-reduce each has its own, and the script, or a learning rate, has changed it on one "
                    "in another way than on the other; do the same on all workers, in the same step"
                )


def check_steps(step: int, said: Sequence[Tuple[int, str]]) -> None:
    """``said``: of each worker, which parameters step. Raises RuntimeError if they differ."""
    first_rank, first = said[0]
    for rank, theirs in said[1:]:
        if theirs != first:
            raise RuntimeError(
                f"step {step}: optimizer.step() is of {first} on worker {first_rank}, and of {theirs} on worker "
                f"{rank}. By all-reduce, which the first step is, too, all workers step the same parameters"
            )


def first_rates(rates: Sequence[Tuple[int, List[Any]]], mine: Sequence[Any]) -> Any:
    """The first worker and its rates and momenta, if mine are others; else None."""
    rank, first = rates[0]
    return (rank, first) if list(mine) != list(first) else None
