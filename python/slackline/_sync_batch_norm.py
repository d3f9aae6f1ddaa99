"""SyncBatchNorm over the workers of a job, in place of torch.distributed."""

from __future__ import annotations

from typing import Any, Callable, List, Optional

import torch

# Gives a vector of float64 to all workers, and returns those of all.
Exchange = Callable[[torch.Tensor], List[torch.Tensor]]


class _Exchanged:
    """What a layer asks. A copy of the layer has the same one; a pickled one has none."""

    def __init__(self, exchange: Optional[Exchange]) -> None:
        self.exchange = exchange

    def __deepcopy__(self, memo: Any) -> "_Exchanged":
        return self

    def __reduce__(self) -> Any:
        return _Exchanged, (None,)


class _SumOfAll(torch.autograd.Function):
    """The sum over workers. Its gradient is the sum of theirs."""

    @staticmethod
    def forward(context: Any, vector: torch.Tensor, exchange: Exchange) -> torch.Tensor:
        context.exchange = exchange
        return _sum(exchange(vector.cpu())).to(vector.device)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        return _sum(context.exchange(gradient.cpu())).to(gradient.device), None


def _sum(vectors: List[torch.Tensor]) -> torch.Tensor:
    return torch.stack(vectors).sum(0)


class SyncBatchNorm(torch.nn.SyncBatchNorm):
    """Mean and variance of a batch are over the batches of all workers. On any device."""

    exchanged = _Exchanged(None)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if input.dim() < 2 or input.size(1) != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: the input has the shape {list(input.shape)}; its second dimension has to be "
                f"{self.num_features}"
            )
        of_batch = self.training or self.running_mean is None
        if not of_batch:
            return torch.nn.functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        dims = [dim for dim in range(input.dim()) if dim != 1]
        # In float64, because the variance is a difference of sums.
        wide = input.double()
        count = wide.new_full((1,), input.numel() // self.num_features)
        sums = torch.cat([wide.sum(dims), wide.square().sum(dims), count])
        exchange = self.exchanged.exchange if self.training else None
        if exchange is not None:
            sums = _SumOfAll.apply(sums, exchange)
        total, squares, number = sums.split([self.num_features, self.num_features, 1])
        if float(number) < 2:
            raise ValueError("SyncBatchNorm: more than 1 value for each channel is required in training")
        mean = total / number
        variance = (squares / number - mean.square()).clamp(min=0)
        if self.training and self.running_mean is not None:
            self._follow(mean.detach(), (variance * number / (number - 1)).detach())
        form = [1, self.num_features] + [1] * (input.dim() - 2)
        normal = (wide - mean.view(form)) * torch.rsqrt(variance + self.eps).view(form)
        normal = normal.to(input.dtype)
        if self.weight is None:
            return normal
        return normal * self.weight.view(form).to(input.dtype) + self.bias.view(form).to(input.dtype)

    def _follow(self, mean: torch.Tensor, variance: torch.Tensor) -> None:
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_(variance.to(self.running_var.dtype), share)


def take_over(module: torch.nn.Module, exchange: Optional[Exchange]) -> List[str]:
    """Has the module's SyncBatchNorm layers ask ``exchange`` (None: nobody). Their names."""
    names = []
    shared = _Exchanged(exchange)
    for name, part in module.named_modules():
        if isinstance(part, torch.nn.SyncBatchNorm):
            names.append(name)
            part.__class__ = SyncBatchNorm
            part.exchanged = shared  # type: ignore[assignment]
    return names
