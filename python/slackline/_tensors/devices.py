"""The device that the config gives a worker, and the streams of a GPU."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, Optional

import torch
import torch.utils.dlpack

from slackline import _core

CPU = torch.device("cpu")


def in_config(device: str, call: str) -> str:
    """What the block ``worker`` of a config needs for "cpu" or "cuda". Raises ValueError for others."""
    if device not in ("cpu", "cuda"):
        raise ValueError(f"{call}: device is {device!r}; 'cpu' or 'cuda' is required")
    return " device: CUDA" if device == "cuda" else ""


def of_worker(rank: int, gpu: Optional[int]) -> torch.device:
    """That of ``worker { device }`` in the config; a GPU becomes PyTorch's current one.

    Raises ValueError naming the worker, what is missing, and what to do.
    """
    if gpu is None:
        return CPU
    worker = f"worker {rank}: the config gives it GPU {gpu} (device: CUDA)"
    if torch.version.cuda is None:
        raise ValueError(
            f"{worker}, but PyTorch {torch.__version__} of {sys.executable} has no CUDA; install a "
            "PyTorch with CUDA, or use device: CPU"
        )
    count = torch.cuda.device_count()
    if gpu >= count:
        raise ValueError(
            f"{worker}, but PyTorch sees {count} on this host; check with nvidia-smi, see "
            "that CUDA_VISIBLE_DEVICES does not hide one, or use device: CPU"
        )
    if _core.has_gpu_code:
        try:
            _core.check_gpu(gpu)
        except _core.JobError as error:
            raise ValueError(f"{worker}: {error}") from None
    device = torch.device("cuda", gpu)
    torch.cuda.set_device(device)
    return device


def handed(tensor: torch.Tensor) -> Any:
    """The tensor's memory as ``_core`` takes it, once: in DLPack's capsule.

    ``_core`` would take the tensor, too, and then call its ``__dlpack__``, which is Python code,
    so a signal's handler may run in it. nanobind takes its KeyboardInterrupt for a tensor that
    has no ``__dlpack__``, and goes another way: the interrupt is lost. Compiled code makes this
    capsule, and the handler runs where the exception reaches the script.
    """
    return torch.utils.dlpack.to_dlpack(tensor)


def check_model(module: torch.nn.Module, device: torch.device) -> None:
    """Raises ValueError naming a trained parameter that is not on the GPU that the config gives."""
    if device == CPU:
        return
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.device != device:
            raise ValueError(
                f"parameter '{name}' is on {parameter.device}, and the config gives this worker {device} "
                "(device: CUDA); call net.to(job.device) before job.model()"
            )


def stream(device: torch.device) -> int:
    """PyTorch's current stream of a GPU, as CUDA's handle; 0 for the CPU."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def like_here(device: torch.device) -> Any:
    """For another thread: a context with the GPU and the stream that are current in this one."""
    if device.type != "cuda":
        return contextlib.nullcontext()
    return torch.cuda.stream(torch.cuda.current_stream(device))
