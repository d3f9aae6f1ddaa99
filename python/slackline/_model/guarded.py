"""Gradients between backward and ``step()``: the script reads them, and what would change one is seen."""

from __future__ import annotations

from typing import Any, Callable, Iterator, Optional

import torch

# What ends with _ changes its first argument, but for these.
_CHANGES_NO_VALUES = {"requires_grad_", "detach_", "rename_"}
_CHANGES = {
    f"__{name}__"
    for name in "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
}
# What gives memory away, in which anything can then be done. NumPy's can be read only.
_GIVES_MEMORY = {"data_ptr", "storage", "untyped_storage", "_typed_storage", "__dlpack__"}
_GIVES_ARRAY = {"numpy", "__array__"}
_SETS_MEMORY = (torch.Tensor.data,)  # Descriptors.


class Guarded(torch.Tensor):
    """A gradient, in its own memory, that tells before one of PyTorch's functions changes it.

    Counts of versions do not tell: ``gradient.data`` has a count of its own. Its views, as
    ``data`` and ``detach()`` give them, are guarded, too. What reads gets a plain tensor.
    """

    plain: torch.Tensor
    told: Callable[[str], None]  # With the function's name, before it changes the gradient.
    read_only: bool  # Memory that is given away cannot be written to.

    @staticmethod
    def of(gradient: torch.Tensor, told: Callable[[str], None], read_only: bool) -> "Guarded":
        guarded = gradient.as_subclass(Guarded)
        guarded.plain, guarded.told, guarded.read_only = gradient, told, read_only
        return guarded  # type: ignore[no-any-return]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        for guarded in _changed(func, name, args, kwargs):
            guarded.told("an assignment to .data" if name == "__set__" else f"{name}()")
        result = func(*_plain(args), **_plain(kwargs))
        owner = next(_guarded([args, kwargs]), None)
        if owner is None:
            return result
        if name in _GIVES_ARRAY:
            if owner.read_only and result.flags.owndata is False:
                result.flags.writeable = False
            return result
        return _guard_views(result, owner)


def _changed(func: Any, name: str, args: Any, kwargs: Any) -> Iterator[Guarded]:
    """The gradients that a call changes, or may change later."""
    first = args[0] if args else kwargs.get("input", kwargs.get("self"))
    yield from _guarded(kwargs.get("out"))
    in_place = name.endswith("_") and not name.endswith("__") and name not in _CHANGES_NO_VALUES
    if in_place or name in _CHANGES or name in _GIVES_MEMORY:
        yield from _guarded(first)
    elif name == "__set__" and getattr(func, "__self__", None) in _SETS_MEMORY:
        yield from _guarded(first)
    elif name in _GIVES_ARRAY:
        yield from (guarded for guarded in _guarded(first) if not guarded.read_only)


def _guarded(value: Any) -> Iterator[Guarded]:
    if isinstance(value, Guarded):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _guarded(item)
    elif isinstance(value, dict):
        yield from _guarded(list(value.values()))


def _plain(value: Any) -> Any:
    if isinstance(value, Guarded):
        return value.plain
    if type(value) in (list, tuple):
        return type(value)(_plain(item) for item in value)
    if type(value) is dict:
        return {key: _plain(item) for key, item in value.items()}
    return value


def _guard_views(result: Any, owner: Guarded) -> Any:
    if isinstance(result, torch.Tensor):
        return _view(result, owner)
    if type(result) in (list, tuple):
        return type(result)(_guard_views(item, owner) for item in result)
    return result


def _view(result: torch.Tensor, owner: Guarded) -> torch.Tensor:
    address, memory = _address(result), owner.plain
    begin = _address(memory)
    if address is None or begin is None:
        return result
    if not begin <= address < begin + max(memory.numel(), 1) * memory.element_size():
        return result
    return Guarded.of(result, owner.told, owner.read_only)


def _address(tensor: torch.Tensor) -> Optional[int]:
    try:
        return tensor.data_ptr()
    except RuntimeError:  # It has no memory of that kind.
        return None
