"""The parameters of a module as the tables of a job."""

from __future__ import annotations

import dataclasses
from typing import Callable, Iterator, List, Optional, Sequence, Tuple

import torch

from slackline import _core
from slackline._tensors import devices, files
from slackline._model import shared_memory


@dataclasses.dataclass
class Table:
    """A parameter and where the job writes its values."""

    name: str
    parameter: torch.nn.Parameter
    # Float32 where the tables are, contiguous: the parameter's own memory, or, of
    # a parameter of another kind, a copy.
    values: torch.Tensor
    own_memory: bool
    # PyTorch's count of changes, which those by the job are not among.
    version: int = 0
    # Why gradients were zero so far; reused while there is none.
    zeros: Optional[torch.Tensor] = None

    def gradient(self) -> torch.Tensor:
        """The parameter's gradient, float32, where the values are, contiguous; nobody may write to it."""
        gradient = self.parameter.grad
        if gradient is None:
            if self.zeros is None:
                self.zeros = torch.zeros_like(self.values)
            return self.zeros
        if gradient.is_sparse:
            gradient = gradient.to_dense()
        gradient = gradient.detach()
        if not self.own_memory:
            return gradient.to(self.values.device, torch.float32).contiguous()
        return gradient if gradient.is_contiguous() else gradient.contiguous()


class Tables:
    """The trained parameters of a module, in its order, and their memory.

    The memory is on ``device``: the host, or the GPU on which all of them are. ``names`` are of
    the parameters in question, in their order; default: of those with ``requires_grad``.
    Raises ValueError naming a parameter that cannot be trained here.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device: torch.device = devices.CPU,
        names: Optional[Sequence[str]] = None,
    ) -> None:
        self.module = module
        self.device = device
        self._stream = 0  # Of the GPU: on which the script computes.
        self.tables: List[Table] = []
        # Of the module, but no tables. None of them is trained.
        self.frozen: List[Tuple[str, torch.nn.Parameter]] = []
        trained: List[Tuple[str, torch.nn.Parameter]] = []
        places = None if names is None else {name: place for place, name in enumerate(names)}
        for name, parameter in module.named_parameters():
            chosen = parameter.requires_grad if places is None else name in places
            (trained if chosen else self.frozen).append((name, parameter))
        if places is not None:
            trained.sort(key=lambda one: places[one[0]])
        for name, parameter in trained:
            if isinstance(parameter, torch.nn.parameter.UninitializedParameter):
                raise ValueError(
                    f"parameter '{name}' has no shape yet; run the module once on an example "
                    "before job.model()"
                )
            if not parameter.is_floating_point():
                raise ValueError(
                    f"parameter '{name}' is {parameter.dtype}; only real floating-point "
                    "parameters are trained, freeze it with requires_grad_(False)"
                )
            if parameter.layout != torch.strided or parameter.numel() == 0:
                raise ValueError(
                    f"parameter '{name}' is {'empty' if parameter.numel() == 0 else parameter.layout}; "
                    "freeze it with requires_grad_(False)"
                )
        shared_memory.check(trained)
        for name, parameter in trained:
            data = parameter.detach()
            own = data.device == device and data.dtype == torch.float32 and data.is_contiguous()
            values = data if own else data.to(device, torch.float32).contiguous().clone()
            self.tables.append(Table(name, parameter, values, own))
        if not self.tables:
            raise ValueError(
                "the model has no parameter with requires_grad; there is nothing to train"
            )
        self._memory: Optional[_core.Parameters] = None
        self.copied = [table for table in self.tables if not table.own_memory]
        # The others, with their addresses.
        self._own = [(t.parameter, t.values.data_ptr(), t) for t in self.tables if t.own_memory]

    def __len__(self) -> int:
        return len(self.tables)

    def bind(
        self,
        rules: "List[str]",
        on_gpu: "Optional[Callable[[List[_core.Table], int], _core.Parameters]]" = None,
    ) -> "_core.Parameters":
        """The tables for a session: with the rule of each, as the text of a config's optimizer.

        ``on_gpu`` makes those that are on a GPU, where the script computes on the stream
        that is current now.
        """
        tables = [
            _core.Table(table.name, list(table.values.shape), devices.handed(table.values), rule)
            for table, rule in zip(self.tables, rules)
        ]
        if on_gpu is None or self.device == devices.CPU:
            self._memory = _core.Parameters(tables)
        else:
            self._stream = devices.stream(self.device)
            self._memory = on_gpu(tables, self._stream)
        return self._memory

    @property
    def memory(self) -> "_core.Parameters":
        """What ``bind()`` has made. Raises RuntimeError before."""
        if self._memory is None:
            raise RuntimeError("the tables of the model belong to no session yet")
        return self._memory

    def load(self, evaluation: "_core.Evaluation") -> None:
        """The module gets the parameters that are to be evaluated."""
        self.memory.load(evaluation)
        self.refresh()

    def check_unchanged(self) -> None:
        """Raises RuntimeError if the script has changed what the job over servers relies on.

        That is a parameter's values, as far as PyTorch counts changes of them, or memory, and
        the stream on which a GPU computes.
        """
        self._check_stream()
        for index, table in enumerate(self.tables):
            moved = table.own_memory and table.parameter.data_ptr() != table.values.data_ptr()
            if moved and table.parameter.shape == table.values.shape:
                self._check_kind(table)
                self.refuse_change(index)
            if moved:
                self._refuse_memory(table)
            if table.parameter._version != table.version:
                self.refuse_change(index)

    def refuse_change(self, index: int) -> None:
        """Raises RuntimeError for a parameter that the script has changed."""
        raise RuntimeError(
            f"parameter '{self.tables[index].name}' was changed by the script after the job had begun; its "
            "values are the servers', so load or change them before the first batch. What changes them in "
            "every step (clipping weights, masks, norms) goes by --mode allreduce, or into the model's forward "
            "with torch.nn.utils.parametrize"
        )

    def _refuse_memory(self, table: Table) -> None:
        raise RuntimeError(
            f"parameter '{table.name}' lies in other memory than at job.model(); move or "
            "convert the model before that, and load values with load_state_dict()"
        )

    def _check_kind(self, table: Table) -> None:
        data = table.parameter
        if data.dtype != table.values.dtype or data.device != table.values.device:
            self._refuse_memory(table)

    def take_over(self) -> None:
        """What the script has made of parameters is what the job goes on with.

        Those that are no tables themselves are compared whole, because PyTorch does not count
        all changes. Raises RuntimeError if one has been moved or converted.
        """
        self._check_stream()
        for parameter, address, table in self._own:
            if parameter.data_ptr() != address:
                self._take_memory(table)
        if self.copied:
            with torch.no_grad():
                for table in self.copied:
                    self._take_copy(table)

    def _take_memory(self, table: Table) -> None:
        """``.data`` was assigned."""
        if table.parameter.shape != table.values.shape:
            self._refuse_memory(table)
        self._check_kind(table)
        with torch.no_grad():
            table.values.copy_(table.parameter)
        table.parameter.data = table.values

    @staticmethod
    def _take_copy(table: Table) -> None:
        parameter = table.parameter
        written = table.values.to(parameter.device, parameter.dtype)
        if not torch.equal(written, parameter):
            # What is as it was written keeps all its bits in the table.
            same = (parameter == written).to(table.values.device)
            now = parameter.to(table.values.device, torch.float32)
            table.values.copy_(torch.where(same, table.values, now))

    def count_anew(self) -> None:
        """What the script has changed until now is no change."""
        for table in self.tables:
            table.version = table.parameter._version

    def check_frozen(self) -> None:
        """Raises RuntimeError naming a parameter that is to be trained now and is no table."""
        for name, parameter in self.frozen:
            if parameter.requires_grad:
                raise RuntimeError(
                    f"parameter '{name}' requires a gradient now, and was frozen at job.model(), so the job does "
                    "not train it; call job.model() and job.optimizer() before it is frozen, and give it a "
                    "parameter group of its own, whose lr is 0 as long as it is frozen"
                )

    def check_module(self) -> None:
        """Raises RuntimeError naming a parameter that has come, gone, or got another name or shape."""
        self.check_frozen()
        names = {id(table.parameter): table.name for table in self.tables}
        known = names.keys() | {id(parameter) for _, parameter in self.frozen}
        there = set()
        for name, parameter in self.module.named_parameters():
            there.add((id(parameter), name))
            if id(parameter) not in known and parameter.requires_grad:
                raise RuntimeError(
                    f"parameter '{name}' was not there at job.model(), so the job does not train it; build the "
                    "whole model before that"
                )
        for table in self.tables:
            if (id(table.parameter), table.name) not in there:
                raise RuntimeError(
                    f"parameter '{table.name}' is not in the model any more, or has another name; change the "
                    "model (pruning, weight_norm, other layers) before job.model()"
                )
            if table.parameter.shape != table.values.shape:
                raise RuntimeError(
                    f"parameter '{table.name}' has the shape {list(table.parameter.shape)} now, and had "
                    f"{list(table.values.shape)} at job.model(); change the model before that"
                )

    def _check_stream(self) -> None:
        if self.device == devices.CPU:
            return
        here = torch.cuda.current_device()
        if here != self.device.index or devices.stream(self.device) != self._stream:
            raise RuntimeError(
                f"the current GPU is {here}, or its stream is another one than at the first batch; take "
                f"batches and call optimizer.step() on {self.device} and on that stream"
            )

    def refresh(self, only: Optional[List[int]] = None) -> None:
        """Takes over what the job has written, where that is not the parameter's memory."""
        if not self.copied:
            return
        chosen = self.copied if only is None else [self.tables[index] for index in only]
        with torch.no_grad():
            for table in chosen:
                if table.own_memory:
                    continue
                table.parameter.copy_(table.values)
                table.version = table.parameter._version

    def fetch(self) -> None:
        """The other way: what the parameters are now is what the job begins with."""
        with torch.no_grad():
            for table in self.copied:
                table.values.copy_(table.parameter)
        self.count_anew()

    def set_companions(self, companions: "List[_core.TypedTensor]") -> None:
        """What else goes into the file of the model, next to the tables."""
        self.memory.set_companions(companions)

    def companions(self) -> "List[_core.TypedTensor]":
        """What else belongs to the module's state: buffers, frozen parameters, other names."""
        return [
            files.typed_tensor(name, tensor)
            for name, tensor in self._others()
            if not files.why_not(tensor)
        ]

    def unwritable(self) -> List[str]:
        """What of the module's state a file cannot have, and why."""
        return [
            f"'{name}' is {files.why_not(tensor)}"
            for name, tensor in self._others()
            if files.why_not(tensor)
        ]

    def _others(self) -> Iterator[Tuple[str, torch.Tensor]]:
        trained = {table.name for table in self.tables}
        for name, tensor in self.module.state_dict().items():
            if name not in trained and isinstance(tensor, torch.Tensor):
                yield name, tensor
