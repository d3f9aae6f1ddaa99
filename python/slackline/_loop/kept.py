"""What a script has beside its parameters, as bytes for checkpoints.

The bytes are a file of ``torch.save`` with a text and a list of tensors: what
``torch.load(weights_only=True)`` of every PyTorch from 1.13 on reads. The text is
JSON in which a list is a list, and all other things but numbers, strings and None
are a map with their kind.
"""

from __future__ import annotations

import collections
import functools
import io
import json
import random
import sys
import types
from typing import Any, Callable, Dict, List, Mapping, Set

import torch

_FORMAT = "slackline state 1"
# Of these a new object has its own; the schedulers of PyTorch leave them out, or mean to.
_FUNCTIONS = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, functools.partial)


class _Packer:
    def __init__(self) -> None:
        self.tensors: List[torch.Tensor] = []

    def _tensor(self, tensor: torch.Tensor) -> int:
        self.tensors.append(tensor.detach().cpu().clone())
        return len(self.tensors) - 1

    def tree(self, value: Any, where: str) -> Any:
        """Raises ValueError naming the place of what cannot be kept."""
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.Tensor):
            return {"tensor": self._tensor(value)}
        if isinstance(value, (bytes, bytearray)):
            return {"bytes": self._tensor(torch.tensor(list(value), dtype=torch.uint8))}
        if isinstance(value, (list, tuple, set, frozenset, collections.deque)):
            items = [self.tree(item, f"{where}[{i}]") for i, item in enumerate(value)]
            if isinstance(value, list):
                return items
            if isinstance(value, tuple):
                return {"tuple": items}
            return {"deque" if isinstance(value, collections.deque) else "set": items}
        if isinstance(value, Mapping):
            kind = "counter" if isinstance(value, collections.Counter) else "dict"
            return {
                kind: [
                    [self.tree(key, f"{where}: a key"), self.tree(item, f"{where}[{key!r}]")]
                    for key, item in value.items()
                    if not isinstance(item, _FUNCTIONS)
                ]
            }
        if numpy is not None and isinstance(value, numpy.ndarray):
            return {"array": [str(value.dtype), list(value.shape), self.tree(value.tobytes(), where)]}
        raise ValueError(
            f"{where} is a {type(value).__name__}, which cannot be kept; tensors, numbers, strings, "
            "bytes, None, and lists, tuples, sets and dicts of them can"
        )


def _untree(value: Any, tensors: List[torch.Tensor]) -> Any:
    if isinstance(value, list):
        return [_untree(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, body),) = value.items()
    if kind == "tensor":
        return tensors[body]
    if kind == "bytes":
        return bytes(tensors[body].tolist())
    if kind in ("dict", "counter"):
        made = {_untree(key, tensors): _untree(item, tensors) for key, item in body}
        return collections.Counter(made) if kind == "counter" else made
    if kind == "array":
        import numpy

        dtype, shape, data = body
        return numpy.frombuffer(_untree(data, tensors), dtype=dtype).reshape(shape).copy()
    items = _untree(body, tensors)
    return {"tuple": tuple, "set": set, "deque": collections.deque}[kind](items)


def pack(value: Any, where: str = "the state") -> bytes:
    """Raises ValueError naming the place of what cannot be kept."""
    packer = _Packer()
    text = json.dumps(packer.tree(value, where))
    file = io.BytesIO()
    torch.save({"format": _FORMAT, "text": text, "tensors": packer.tensors}, file)
    return file.getvalue()


def unpack(data: bytes) -> Any:
    """Raises ValueError for bytes that are not of ``pack()``."""
    try:
        read = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        if read["format"] != _FORMAT:
            raise ValueError(f"format {read['format']!r}; {_FORMAT!r} is required")
        return _untree(json.loads(read["text"]), read["tensors"])
    except Exception as error:
        raise ValueError(f"the state in the checkpoint cannot be read: {error}") from error


# ---- Random numbers ----------------------------------------------------------


class _Generator:
    """A generator of random numbers that ``Job.keep()`` was given, with a state_dict."""

    def __init__(self, generator: Any) -> None:
        self._generator = generator

    def state_dict(self) -> Dict[str, Any]:
        generator = self._generator
        if isinstance(generator, torch.Generator):
            return {"state": generator.get_state()}
        if hasattr(generator, "get_state"):  # NumPy's RandomState.
            return {"state": generator.get_state(legacy=False)}
        return {"state": getattr(generator, "bit_generator", generator).state}

    def load_state_dict(self, state: Dict[str, Any]) -> None:
        generator = self._generator
        if hasattr(generator, "set_state"):
            generator.set_state(state["state"])
        else:
            getattr(generator, "bit_generator", generator).state = state["state"]


def _is_generator(thing: Any) -> bool:
    if isinstance(thing, torch.Generator):
        return True
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(
        thing, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator)
    )


def _random_states(warn: Callable[[str], None]) -> Dict[str, Any]:
    states: Dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        state = numpy.random.get_state(legacy=False)
        try:
            _Packer().tree(state, "its state")
            states["numpy"] = state
        except ValueError as error:
            warn(
                f"the random numbers of numpy.random are not in checkpoints: of its generator "
                f"{state.get('bit_generator')}, {error}; whoever goes on from one draws others"
            )
    return states


def _set_random_states(states: Dict[str, Any], warn: Callable[[str], None]) -> None:
    random.setstate(states["python"])
    torch.set_rng_state(states["torch"])
    for index, state in enumerate(states.get("cuda", [])):
        if torch.cuda.is_available() and index < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, index)
    numpy = sys.modules.get("numpy")
    if numpy is None or "numpy" not in states:
        return
    state = states["numpy"]
    if isinstance(state, list):  # Of a checkpoint of an earlier version.
        state = dict(zip(("bit_generator", "key", "pos", "has_gauss", "gauss"), state))
        state["state"] = {"key": state.pop("key"), "pos": state.pop("pos")}
    present = numpy.random.get_state(legacy=False)["bit_generator"]
    if present != state["bit_generator"]:
        warn(
            f"numpy.random drew with {state['bit_generator']} when the checkpoint was taken, and draws with "
            f"{present} now: its random numbers begin anew; give it the same one with "
            "numpy.random.set_bit_generator() before the first batch"
        )
        return
    numpy.random.set_state(state)


# ---- All of it ---------------------------------------------------------------


class Kept:
    """What goes into checkpoints: the objects of ``Job.keep()``, and what needs no asking."""

    def __init__(self) -> None:
        self._objects: Dict[str, Any] = {}
        self._said: Set[str] = set()

    def add(self, objects: Mapping[str, Any]) -> None:
        of_all: Dict[str, Any] = {}
        for name, thing in objects.items():
            if name in self._objects:
                raise ValueError(f"job.keep(): '{name}' was given before; give this one another name")
            if _is_generator(thing):
                thing = _Generator(thing)
            of_all[name] = thing
            for method in ("state_dict", "load_state_dict"):
                if not callable(getattr(thing, method, None)):
                    raise ValueError(
                        f"job.keep(): '{name}' is a {type(thing).__name__} without {method}(); an object "
                        "with state_dict() and load_state_dict() is required"
                    )
            # What cannot be kept is better known now than at the first checkpoint.
            _Packer().tree(thing.state_dict(), f"job.keep(): the state of '{name}'")
        self._objects.update(of_all)

    def state(
        self, module: torch.nn.Module, optimizer: Any, warn: Callable[[str], None]
    ) -> bytes:
        """All of it now. Raises what a state_dict() raises, and ValueError for what cannot be kept."""

        def warn_once(text: str) -> None:
            if text not in self._said:
                self._said.add(text)
                warn(text)

        return pack(
            {
                "objects": {name: thing.state_dict() for name, thing in self._objects.items()},
                "buffers": _buffers(module),
                "rates": [
                    {**of_group, "first": rule.lr}
                    for of_group, rule in zip(optimizer.options_now(), optimizer.rules)
                ],
                "random": _random_states(warn_once),
            },
            "the script's state",
        )

    def restore(
        self, data: bytes, module: torch.nn.Module, optimizer: Any, warn: Callable[[str], None]
    ) -> None:
        """Makes all of it what it was. Raises ValueError or RuntimeError naming what does not fit."""
        state = unpack(data)
        _restore_buffers(state["buffers"], module, warn)
        kept = state["objects"]
        for name in sorted(kept.keys() - self._objects.keys()):
            warn(
                f"the checkpoint has the state of '{name}', which this script does not keep; it is not "
                f"used: give the object to job.keep({name}=...) before the first batch"
            )
        for name in sorted(self._objects.keys() - kept.keys()):
            warn(f"the checkpoint has no state of '{name}', which begins anew")
        for name in kept:
            if name not in self._objects:
                continue
            try:
                self._objects[name].load_state_dict(kept[name])
            except Exception as error:
                raise RuntimeError(
                    f"job.keep(): '{name}' cannot go on with its state in the checkpoint: "
                    f"{type(error).__name__}: {error}; make the object as it was made there, or leave it "
                    "out of job.keep()"
                ) from error
        _restore_rates(state["rates"], optimizer, warn)
        _set_random_states(state["random"], warn)  # All before may have drawn some.


def _buffers(module: torch.nn.Module) -> Dict[str, torch.Tensor]:
    """The module's buffers that are in its state_dict()."""
    persistent = module.state_dict().keys()
    return {name: buffer for name, buffer in module.named_buffers() if name in persistent}


def _restore_buffers(
    kept: Dict[str, torch.Tensor], module: torch.nn.Module, warn: Callable[[str], None]
) -> None:
    present = _buffers(module)
    for name in sorted(kept.keys() - present.keys()):
        warn(f"the checkpoint has buffer '{name}', which the model has not; it is not used")
    for name in sorted(present.keys() - kept.keys()):
        warn(f"the checkpoint has no buffer '{name}' of the model, which begins anew")
    with torch.no_grad():
        for name in kept.keys() & present.keys():
            if kept[name].shape != present[name].shape:
                raise ValueError(
                    f"buffer '{name}' of the model has the shape {list(present[name].shape)}, and "
                    f"{list(kept[name].shape)} in the checkpoint; train the model that was trained there"
                )
            present[name].copy_(kept[name])


def _restore_rates(kept: List[Any], optimizer: Any, warn: Callable[[str], None]) -> None:
    """What a scheduler has set: rate and momentum. Of a group that begins with another rate now, the ratio."""
    if len(kept) != len(optimizer.param_groups):
        warn(
            f"the optimizer had {len(kept)} parameter groups in the checkpoint and has "
            f"{len(optimizer.param_groups)} now; their learning rates are those of the script"
        )
        return
    options = []
    for of_group, rule in zip(kept, optimizer.rules):
        if isinstance(of_group, list):  # Of a checkpoint that has no momenta: the rate, and the first one.
            of_group = {"lr": of_group[0], "first": of_group[1]}
        first = of_group.pop("first")
        if first != rule.lr:
            of_group["lr"] *= rule.lr / first
        options.append(of_group)
    optimizer.set_options(options)
