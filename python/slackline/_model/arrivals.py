"""Parameters that come while the step goes on: a use of one waits for it."""

from __future__ import annotations

import bisect
import threading
from typing import Any, Callable, Iterable, List, Optional, Set, Tuple

import torch
from torch.overrides import TorchFunctionMode, _get_current_function_mode

from slackline._model.compiled import CompiledParts, runs_outside_of_python
from slackline._model.guarded import Guarded
from slackline._model.tables import Tables

# Steps that have to show that every use of a parameter is seen; after the first one, in
# which compilers compile.
_STEPS_WATCHED = 3
# What asks a tensor for something else than its values.
_NO_USE = {"__get__", "__set__", "__delete__"}


class Arrivals:
    """Sees each use of a parameter in a step, and waits there until it has come.

    What PyTorch's functions and modules are given is looked at while parameters are
    missing, and only then. A part of the module that torch.compile has compiled waits for
    all of its parameters, and those that it is given, when it is called. Code that has a parameter's memory in another
    way is not seen: TorchScript, other compiled code, extensions that are no modules. The
    first steps, which wait for everything, show whether a script has such code: parameters
    get gradients there, and no use of them was seen. From then on a gradient of a parameter
    that was not waited for is an error. What cannot be noticed is code of both kinds that
    uses one parameter.

    Only for parameters on the host: on a GPU, whatever waits would have to wait on the
    stream that uses the parameter.
    """

    def __init__(
        self, tables: Tables, wait_for: Callable[[int], None], wanted: Optional[bool]
    ) -> None:
        self._tables = tables
        self._wait_for = wait_for
        self._wanted = wanted
        # Steps of which the use of parameters was looked at; -1: the first one is to come.
        self._watched = -1 if wanted is None else _STEPS_WATCHED
        unfit = ""
        if runs_outside_of_python(tables.module):
            unfit = (
                "the module has parts whose use of parameters cannot be seen (TorchScript, or module.compile() "
                "instead of torch.compile(module))"
            )
        elif any(table.parameter.device.type != "cpu" for table in tables.tables):
            unfit = "parameters are on a GPU, where steps begin when all have come"
        self._active = wanted is not False and not unfit
        if wanted and unfit:
            raise ValueError(f"job.model(overlap=True): {unfit}; leave overlap out")
        self.missing: Set[int] = set()
        self._unseen: Set[int] = set()  # Not used yet, in a step that is watched.
        # The job is one thread's at a time, and threads of the script compute, too.
        self.lock = threading.RLock()
        self._coming: Optional[int] = None  # Is being written.
        self._mode: Optional[_Mode] = None
        self._hook: Any = None
        index_of = {id(table.parameter): index for index, table in enumerate(tables.tables)}
        self._of_module = {
            id(module): [index_of[id(own)] for own in module._parameters.values() if id(own) in index_of]
            for module in tables.module.modules()
        }
        self._compiled = CompiledParts(tables.module, self._before_compiled, self._look)

    def never(self, why: str) -> None:
        """Steps begin when all has come. Raises ValueError if the script wants it otherwise."""
        if self._wanted:
            raise ValueError(
                f"job.model(overlap=True): {why} each begins when all parameters have come; leave overlap out"
            )
        self._active = False

    @property
    def possible(self) -> bool:
        """Whether steps may begin before all parameters have come."""
        return self._active

    def take(self, by_table: bool) -> None:
        """A step is there. Its parameters are too, unless they come table by table."""
        self._leave_mode()
        if self._watched == 0 and self._active:
            self._active = self._compiled.are_all()
        if self._active and (by_table or self._watches()):
            self._find_memory()  # Before anything is missing: it asks for addresses.
        if by_table:
            self.missing = set(range(len(self._tables)))
            if not self._active or self._watched < _STEPS_WATCHED:
                self.wait_for_all()

    def wait_for_all(self) -> None:
        """Until nothing is missing."""
        self._wait(sorted(self.missing))

    def watch(self) -> None:
        """What follows is the script's."""
        self._unseen = set(range(len(self._tables))) if self._watches() else set()
        # In the first step, too: what is compiled there is a part's, or not.
        if self.looks() or (self._active and self._watched < 0):
            self._compiled.listen()
        self._look()

    def _look(self) -> None:
        if not self.looks() or self._hook is not None:
            return
        self._hook = torch.nn.modules.module.register_module_forward_pre_hook(self._before_forward)
        if self._mode is None:
            self._mode = _Mode(self)
            self._mode.__enter__()

    def gradient_made(self, index: int) -> None:
        """There is a gradient. Raises RuntimeError if its parameter was not there."""
        if index in self._unseen and self._wanted is None:
            self._active = False
        if index in self.missing:
            raise RuntimeError(
                f"'{self._tables.tables[index].name}' was used before it had come from the servers, by "
                "something that is not a function or a module of PyTorch: give job.model(overlap=False)"
            )

    def end_step(self) -> None:
        """The script has computed its gradients. Raises as gradient_made() does."""
        if self.looks():  # Some gradients are not backward's.
            for index, table in enumerate(self._tables.tables):
                if table.parameter.grad is not None:
                    self.gradient_made(index)
        if self._watched < _STEPS_WATCHED:
            self._watched += 1
        self.wait_for_all()
        self.leave()

    def leave(self) -> None:
        """Looks at no use any more."""
        self._unseen = set()
        self._compiled.leave()
        self._look_away()

    def _look_away(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._leave_mode()

    def _leave_mode(self) -> None:
        # Not while a mode of the script's that has begun since lasts, which would be ended
        # in its place.
        if self._mode is not None and _get_current_function_mode() is self._mode:
            self._mode.__exit__(None, None, None)
            self._mode = None

    def _watches(self) -> bool:
        return self._active and 0 <= self._watched < _STEPS_WATCHED

    def _find_memory(self) -> None:
        memory = sorted(
            (table.parameter.data_ptr(), table.parameter.numel() * table.parameter.element_size(), index)
            for index, table in enumerate(self._tables.tables)
        )
        self._begins = [begin for begin, _, _ in memory]
        self._ends = [begin + size for begin, size, _ in memory]
        self._order = [index for _, _, index in memory]

    def looks(self) -> bool:
        """Whether a use of a parameter matters now."""
        return bool(self.missing or self._unseen)

    def used(self, values: Iterable[Any]) -> None:
        """The script uses these, perhaps parameters or views of them among them."""
        for value in values:
            if isinstance(value, torch.Tensor):
                self._used_tensor(value)
            elif isinstance(value, (list, tuple)):
                self.used(value)
            elif isinstance(value, dict):
                self.used(value.values())

    def _used_tensor(self, tensor: torch.Tensor) -> None:
        if isinstance(tensor, Guarded):  # No parameter.
            return
        try:
            address = tensor.data_ptr()
        except RuntimeError:  # It has no memory that could be a parameter's.
            return
        at = bisect.bisect_right(self._begins, address) - 1
        if at >= 0 and address < self._ends[at]:
            self._wait([self._order[at]])

    def _before_forward(self, module: torch.nn.Module, _: Any) -> None:
        if self.looks():
            self._wait(self._of_module.get(id(module), []))

    def _before_compiled(self, part: torch.nn.Module, given: Tuple[Any, ...]) -> None:
        if self.looks():
            self.used(given)
            self._wait([index for module in part.modules() for index in self._of_module.get(id(module), [])])
        self._look_away()

    def _wait(self, tables: List[int]) -> None:
        self._unseen.difference_update(tables)
        if not self.missing.intersection(tables):
            return
        with self.lock:
            for index in tables:
                if index not in self.missing or index == self._coming:
                    continue
                self._coming = index
                try:
                    self._wait_for(index)
                    self._tables.refresh([index])
                finally:
                    self._coming = None
                self.missing.discard(index)


class _Mode(TorchFunctionMode):
    """Sees what PyTorch's functions are given."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__()
        self._arrivals = arrivals

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._arrivals.looks() and getattr(func, "__name__", "") not in _NO_USE:
            self._arrivals.used(args)
            self._arrivals.used(kwargs.values())
        return func(*args, **kwargs)
