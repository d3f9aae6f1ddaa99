"""Parameters that lie in one memory."""

from __future__ import annotations

from typing import Dict, List, Tuple

import torch


def check(parameters: List[Tuple[str, torch.nn.Parameter]]) -> None:
    """Raises ValueError naming two parameters that have memory in common, or one that repeats its own.

    ``parameters`` are trained, strided and not empty; each parameter is there once.
    """
    of_device: Dict[torch.device, List[Tuple[int, int, str, torch.nn.Parameter]]] = {}
    for name, parameter in parameters:
        span = 1 + sum((size - 1) * step for size, step in zip(parameter.shape, parameter.stride()))
        if parameter.numel() > span:
            raise ValueError(
                f"parameter '{name}' has {parameter.numel()} elements in the memory of {span}, as expand() "
                "makes it; give it memory of its own: torch.nn.Parameter(values.clone())"
            )
        begin = parameter.data_ptr()
        place = (begin, begin + span * parameter.element_size(), name, parameter)
        of_device.setdefault(parameter.device, []).append(place)
    for places in of_device.values():
        places.sort(key=lambda place: place[:2])
        open_ones: List[Tuple[int, int, str, torch.nn.Parameter]] = []
        for place in places:
            open_ones = [other for other in open_ones if other[1] > place[0]]
            for other in open_ones:
                if _meet(other[3], place[3]):
                    raise ValueError(_said(other, place))
            open_ones.append(place)


def _said(a: Tuple[int, int, str, torch.nn.Parameter], b: Tuple[int, int, str, torch.nn.Parameter]) -> str:
    same = a[0] == b[0] and a[3].shape == b[3].shape
    tie = f"make them one parameter, {b[2]} = {a[2]} without .data, or " if same else ""
    return (
        f"parameters '{a[2]}' and '{b[2]}' lie in the same memory, and would overwrite what the other has "
        f"learnt; {tie}give each its own memory with .data.clone()"
    )


def _meet(a: torch.nn.Parameter, b: torch.nn.Parameter) -> bool:
    """Whether two parameters whose extents overlap have an element in common."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    return bool(torch.isin(_addresses(a), _addresses(b)).any())


def _addresses(parameter: torch.nn.Parameter) -> torch.Tensor:
    addresses = torch.tensor([parameter.data_ptr()])
    for size, step in zip(parameter.shape, parameter.stride()):
        steps = torch.arange(size) * step * parameter.element_size()
        addresses = (addresses[:, None] + steps).reshape(-1)
    return addresses
