"""Parts of a module that torch.compile has compiled."""

from __future__ import annotations

import sys
import warnings
from typing import Any, Callable, Dict, List, Tuple

import torch


class CompiledParts:
    """Tells when a compiled part of a module is called, and when it returns.

    A part is what ``torch.compile(part)`` has returned. While one runs nothing of ours may
    look at modules or functions: the compiler would take it for the script's, and compile
    anew in each step.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        before: Callable[[torch.nn.Module, Tuple[Any, ...]], None],
        after: Callable[[], None],
    ) -> None:
        """``before`` is given the part and all that it is called with."""
        self._before = before
        self._after = after
        self._parts: List[torch.nn.Module] = []
        self._collect(module)
        if self._parts:
            # PyTorch warns that hooks for all modules are called for a compiled one, too.
            warnings.filterwarnings("ignore", r"Using `torch\.compile\(module\)` when there are global hooks")
        self._hooks: List[Any] = []
        self._frames = 0  # Compiled inside of parts.
        self._frames_before = 0

    def _collect(self, module: torch.nn.Module) -> None:
        if hasattr(module, "_orig_mod"):
            self._parts.append(module)  # What is compiled in it is called by compiled code.
            return
        for child in module.children():
            self._collect(child)

    def listen(self) -> None:
        """Until ``leave()``."""
        if self._hooks:
            return
        # Not held by a copy of the module that is made meanwhile: a function is not copied.
        mine: Dict[int, torch.nn.Module] = {id(part): part for part in self._parts}

        def begins(part: torch.nn.Module, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> None:
            if id(part) in mine:
                self._frames_before = _compiled_frames()
                self._before(part, (*args, *kwargs.values()))

        def ends(part: torch.nn.Module, *_: Any) -> None:
            if id(part) in mine:
                self._frames += _compiled_frames() - self._frames_before
                self._after()

        for part in self._parts:
            self._hooks.append(part.register_forward_pre_hook(begins, with_kwargs=True))
            # Also when the part has raised.
            self._hooks.append(part.register_forward_hook(ends, always_call=True))

    def leave(self) -> None:
        """Says nothing any more."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def are_all(self) -> bool:
        """Whether nothing has been compiled that is not in one of them."""
        return _compiled_frames() == self._frames


def runs_outside_of_python(module: torch.nn.Module) -> bool:
    """Whether calls of a part cannot be told: TorchScript, or ``part.compile()``."""
    return any(
        isinstance(part, torch.jit.ScriptModule) or getattr(part, "_compiled_call_impl", None) is not None
        for part in module.modules()
    )


def _compiled_frames() -> int:
    """How many functions torch.compile has compiled in this process."""
    utils = sys.modules.get("torch._dynamo.utils")
    return sum(utils.counters["frames"].values()) if utils is not None else 0
