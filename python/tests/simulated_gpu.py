"""Runs a script on a simulated GPU (tests/gpu/simulated): simulated_gpu.py SCRIPT, with LD_PRELOAD.

PyTorch has the CPU's tensors only, so here these are the GPU's for slackline. PyTorch computes on them
at once: when a step begins, and when it is finished, all is done that the computation's stream has then,
and nothing else.
"""

import contextlib
import ctypes
import math
import runpy
import sys

import torch

from slackline import _core
from slackline._tensors import devices
from slackline._loop import worlds
from slackline._model.tables import Tables

_CUDA = 2  # As DLPack names devices.
library = ctypes.CDLL(None)
get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
get_pointer.restype = ctypes.c_void_p
get_pointer.argtypes = [ctypes.py_object, ctypes.c_char_p]


class OnGpu:
    """A tensor that says that it is on the GPU."""

    gpu = 0

    def __init__(self, tensor):
        self.tensor = tensor
        library.slackline_simulated_take(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_size_t(tensor.nelement() * 4), OnGpu.gpu
        )

    def __dlpack__(self, **_):
        capsule = torch.utils.dlpack.to_dlpack(self.tensor)
        # Of the struct DLTensor: a pointer, then the device's type and its number.
        device = ctypes.cast(get_pointer(capsule, b"dltensor") + 8, ctypes.POINTER(ctypes.c_int32))
        device[0], device[1] = _CUDA, OnGpu.gpu
        return capsule

    def __dlpack_device__(self):
        return _CUDA, OnGpu.gpu


def of_worker(rank, gpu):
    _core.check_gpu(gpu)
    assert library.cudaSetDevice(gpu) == 0
    OnGpu.gpu = gpu
    return torch.device("cpu")


def bind(self, rules, on_gpu=None):
    if on_gpu is None:  # The copy for evaluations is the host's.
        devices.CPU = torch.device("cpu")
        try:
            return plain_bind(self, rules)
        finally:
            devices.CPU = torch.device("meta")
    return plain_bind(
        self,
        rules,
        lambda _, stream: on_gpu(
            [
                _core.Table(table.name, list(table.values.shape), OnGpu(table.values), rule)
                for table, rule in zip(self.tables, rules)
            ],
            stream,
        ),
    )


def next_task(self):
    task = self._worker.next()
    library.slackline_simulated_run(None)
    return task


def gradient(self, table, values, factor):
    sizes.append(values.nelement())
    self._worker.gradient(table, OnGpu(values), factor, 0)


def finish_step(self, gradients, factors, skipped):
    # The script has let its gradients go: memory that slackline does not hold is overwritten.
    _ = [torch.full((size,), math.nan) for size in sizes for _ in range(4)]
    sizes.clear()
    finished = self._worker.finish_step([None if g is None else OnGpu(g) for g in gradients], factors, skipped)
    library.slackline_simulated_run(None)
    return finished


sizes = []
plain_bind = Tables.bind
Tables.bind = bind
Tables._check_stream = lambda self: None
worlds.Joined.next, worlds.Joined.gradient, worlds.Joined.finish_step = next_task, gradient, finish_step
devices.of_worker = of_worker
devices.stream = lambda device: 0
devices.like_here = lambda device: contextlib.nullcontext()
devices.CPU = torch.device("meta")  # No tensor of the script is there.
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
print(f"{library.slackline_simulated_operations()} operations of the simulated GPU")
