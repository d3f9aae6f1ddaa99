"""The batches of the examples that a worker is given for a step (elastic sampling)."""

from __future__ import annotations

from typing import Any, Dict, Iterable, Iterator, List, Optional

import torch
import torch.utils.data as data

from slackline._data.order import Orders, Places, has_own_random, length
from slackline._data.pieces import cut, joined, packed, unpacked
from slackline._loop.worlds import World

# Of a DataLoader. All else chooses examples, and here the coordinator does.
_LOADING = (
    "collate_fn",
    "generator",
    "multiprocessing_context",
    "num_workers",
    "persistent_workers",
    "pin_memory",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


class Elastic:
    """Which rows are at the places of an epoch's order, and their batches.

    A step has always ``accumulate`` batches. Where it has fewer examples than usual, at
    the end of an epoch, these are smaller.
    """

    def __init__(
        self,
        dataset: Any,
        orders: Orders,
        world: World,
        batch_size: int,
        accumulate: int,
        shuffle: bool,
        sampler: Optional[Iterable[int]],
        options: Dict[str, Any],
    ) -> None:
        unfit = [name for name, value in options.items() if name not in _LOADING and value]
        if unfit:
            raise ValueError(
                f"job.loader(): elastic=True does not go with {', '.join(unfit)}, since which "
                "examples are next is known only when a worker is ready for them"
            )
        if sampler is not None and has_own_random(sampler):
            raise ValueError(
                "job.loader(): with elastic=True each worker draws the sampler when it needs an epoch's "
                "order, and has to get what the others get; a generator of its own goes on from draw "
                "to draw, so leave it out: PyTorch's, NumPy's and Python's own are seeded for each epoch"
            )
        self._dataset = dataset
        self._accumulate = accumulate
        self._step = batch_size * accumulate
        # Of an epoch.
        drawn = None if sampler is None else length(sampler, "sampler", None)
        self.examples = len(dataset) if drawn is None else drawn  # type: ignore[arg-type]
        self._places = Places(self.examples, self._step, world, shuffle, elastic=True)
        if sampler is not None:
            self._places.take_order(orders.of(sampler), self.examples)
        self._open_loading({name: value for name, value in options.items() if name in _LOADING})

    def _open_loading(self, options: Dict[str, Any]) -> None:
        collate = options.pop("collate_fn", None)
        self._collate = None if collate is data.default_collate else collate
        self._pin = bool(options.pop("pin_memory", False)) and torch.cuda.is_available()
        self._processes = options.get("num_workers", 0)
        options = {name: value for name, value in options.items() if value}
        self._direct = (
            type(self._dataset) is data.TensorDataset and self._collate is None and not options
        )
        # Of each batch one for each process.
        self._pieces: List[List[int]] = []
        self._keep = bool(options.get("persistent_workers"))
        if self._processes > 0:
            # To the DataLoader each step is an epoch, and its processes are there for many.
            options["persistent_workers"] = True
        if self._collate is not None:
            options["collate_fn"] = packed if self._processes else self._collate
        self._options = options
        self._kept = self._new_loader()  # Refuses wrong options at once.

    def loader(self) -> data.DataLoader:  # type: ignore[type-arg]
        """What loads the batches of one pass. Its processes end when nobody holds it."""
        return self._kept if self._keep else self._new_loader()

    def _new_loader(self) -> data.DataLoader:  # type: ignore[type-arg]
        return data.DataLoader(self._dataset, batch_sampler=self._pieces, **self._options)

    def check(self, total: int) -> None:
        """Raises ValueError if a step of a job with so many examples has too few for its batches."""
        for what, count in (
            ("an epoch", self.examples if total >= self.examples else 0),
            ("the job", total % self.examples),
        ):
            rest = count % self._step
            if 0 < rest < self._accumulate:
                raise ValueError(
                    f"job.loader(): the last step of {what} has {rest} of its {count} examples, which "
                    f"do not make accumulate={self._accumulate} batches; change batch_size, or leave "
                    f"out {rest} examples"
                )

    def batches(self, loader: Iterable[Any], epoch: int, begin: int, end: int) -> Iterator[Any]:
        """Those of a step that has the places [begin, end) of an epoch's order."""
        parts = cut(self._places.between(epoch, begin, end), self._accumulate)
        pieces = [cut(part, max(self._processes, 1)) for part in parts]
        self._pieces[:] = [piece for of_part in pieces for piece in of_part]
        loaded = iter(()) if self._direct else iter(loader)
        for part, of_part in zip(parts, pieces):
            if self._direct:
                index = torch.tensor(part)
                batch: Any = [tensor[index] for tensor in self._dataset.tensors]
            else:
                batch = self._whole([next(loaded) for _ in of_part])
            yield data._utils.pin_memory.pin_memory(batch) if self._pin else batch

    def _whole(self, pieces: List[Any]) -> Any:
        if self._collate is not None and self._processes:
            return self._collate(unpacked(pieces))
        return joined(pieces)
