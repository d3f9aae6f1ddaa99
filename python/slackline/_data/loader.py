"""Which examples a worker trains on, and in which step."""

from __future__ import annotations

import hashlib
import time
from typing import Any, Iterable, Iterator, List, Optional

import torch
import torch.utils.data as data

from slackline import _core
from slackline._tensors import files
from slackline._data.elastic import Elastic
from slackline._data.order import Drawn, Orders, Places, digest, length
from slackline._loop.step_loop import StepLoop


class _Rest(data.Sampler):  # type: ignore[type-arg]
    """The batches of this worker in an epoch, from some position on."""

    def __init__(self) -> None:
        self.batches: List[List[int]] = []
        self.position = 0

    def __iter__(self) -> Iterator[List[int]]:
        return iter(self.batches[self.position :])

    def __len__(self) -> int:
        return len(self.batches) - self.position


class _Rows:
    """Batches of a TensorDataset: what a DataLoader makes, without a call for each row."""

    def __init__(self, dataset: data.TensorDataset, batches: _Rest) -> None:
        self._tensors = dataset.tensors
        self._batches = batches

    def __iter__(self) -> Iterator[List[torch.Tensor]]:
        for rows in self._batches:
            index = torch.tensor(rows)
            yield [tensor[index] for tensor in self._tensors]


class _Timed:
    """Batches; the job is told how long each one has taken."""

    def __init__(self, loop: StepLoop, batches: Iterable[Any]) -> None:
        self._world = loop.world
        began = time.perf_counter()
        self._batches = iter(batches)  # May start processes.
        self._world.loaded(time.perf_counter() - began)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        began = time.perf_counter()
        try:
            return next(self._batches)
        finally:
            self._world.loaded(time.perf_counter() - began)


class Loader:
    """This worker's batches. Each pass over it is one epoch of the job.

    Made by ``Job.loader()``. A batch belongs to a step of the job, so a worker
    that joins again, or leaves steps out, goes on with the right one.
    """

    def __init__(
        self,
        loop: StepLoop,
        orders: Orders,
        dataset: Any,
        batch_size: int,
        shuffle: bool,
        sampler: Optional[Iterable[int]],
        batch_sampler: Optional[Iterable[List[int]]],
        steps: Optional[int],
        accumulate: int,
        elastic: bool,
        loader_options: dict,
    ) -> None:
        self._loop = loop
        self._world = loop.world
        self.elastic: Optional[Elastic] = None
        self._dataset = dataset
        if batch_sampler is not None:  # Those of torch.utils.data say it.
            batch_size = getattr(batch_sampler, "batch_size", batch_size)
        self.batch_size = batch_size
        self.accumulate = accumulate
        self._shuffle = shuffle
        self._batch_sampler = batch_sampler
        # What the script's own order has for an epoch.
        order = batch_sampler if batch_sampler is not None else sampler
        self._drawn: Optional[Drawn] = None
        self._used = 0  # Of what was drawn, in an epoch.
        self._epoch = -1  # Of the batches in _rest.
        self._rest = _Rest()
        if accumulate < 1 or batch_size < 1:
            raise ValueError(
                f"job.loader(): batch_size {batch_size} and accumulate {accumulate} must be at least 1"
            )
        for given in (sampler, batch_sampler):
            if isinstance(given, data.distributed.DistributedSampler):
                raise ValueError(
                    "job.loader(): a DistributedSampler splits the data once more; leave it out, "
                    "the loader gives every worker its own part"
                )
        if sampler is not None and batch_sampler is not None:
            raise ValueError("job.loader(): give sampler or batch_sampler, not both")
        self._check_options(loader_options, elastic)
        if elastic:
            self._open_elastic(orders, sampler, batch_sampler, steps, loader_options)
            return
        if isinstance(dataset, data.IterableDataset):
            if steps is None or steps < 1:
                raise ValueError(
                    "job.loader(): an IterableDataset has no length; say with steps=... how many "
                    "steps of each worker are an epoch"
                    + ("" if steps is None else f"; {steps} is too few, 1 is required")
                )
            self.steps_per_epoch = steps
            self._loader = data.DataLoader(dataset, batch_size=batch_size, **loader_options)
            return
        # An order has batches or examples; a step takes so many of them.
        each = 1 if batch_sampler is not None else batch_size
        share = accumulate * self._world.world_size * each
        count = len(dataset) if order is None else self._length(order, share, each, steps)
        self._places = Places(count, accumulate * each, self._world, shuffle)
        self.steps_per_epoch = self._limited(self._places.steps_per_epoch, steps)
        if order is not None:
            self._used = self.steps_per_epoch * share
            self._drawn = orders.of(order, self._used)
            self._places.take_order(self._drawn, self._used, in_batches=batch_sampler is not None)
        self._loader: Iterable[Any]
        if type(dataset) is data.TensorDataset and not loader_options:
            self._loader = _Rows(dataset, self._rest)
        else:
            self._loader = data.DataLoader(dataset, batch_sampler=self._rest, **loader_options)

    def _check_options(self, options: dict, elastic: bool) -> None:
        """Takes out what a DataLoader that is given its batches does not take, and this one does anyhow."""
        if isinstance(self._dataset, data.IterableDataset):
            return
        if options.pop("drop_last", False) and elastic:
            raise ValueError(
                "job.loader(): elastic=True does not go with drop_last=True: every example is trained on, and the "
                "last batches of an epoch may be smaller; leave one out"
            )

    def _open_elastic(
        self,
        orders: Orders,
        sampler: Optional[Iterable[int]],
        batch_sampler: Optional[Iterable[List[int]]],
        steps: Optional[int],
        loader_options: dict,
    ) -> None:
        for name, given, instead in (
            ("batch_sampler", batch_sampler is not None, "give sampler, from which batches are cut"),
            ("steps", steps is not None, "an epoch has all examples; give sampler for fewer"),
            (
                "an IterableDataset",
                isinstance(self._dataset, data.IterableDataset),
                "examples are asked for by number; give a data set that has one for each",
            ),
        ):
            if given:
                raise ValueError(f"job.loader(): elastic=True does not go with {name}: {instead}")
        self.elastic = Elastic(
            self._dataset,
            orders,
            self._world,
            self.batch_size,
            self.accumulate,
            self._shuffle,
            sampler,
            loader_options,
        )
        _, self.steps_per_epoch, _ = _core.elastic_length(
            None, None, self.elastic.examples, self.batch_size * self.accumulate, self._world.world_size
        )

    def _length(self, order: Iterable[Any], share: int, each: int, steps: Optional[int]) -> int:
        """Of a sampler's order, which has ``share`` for a step of all workers and ``each`` for a batch."""
        drawn = length(order, "sampler" if self._batch_sampler is None else "batch_sampler", steps)
        count = (steps or 0) * share if drawn is None else drawn
        if count < share:
            raise ValueError(
                f"job.loader(): {count // each} batches do not make one step of {self._world.world_size} "
                f"workers with {self.accumulate} each; use smaller batches or fewer workers"
            )
        return count

    @staticmethod
    def _limited(most: int, steps: Optional[int]) -> int:
        if steps is not None and not 1 <= steps <= most:
            raise ValueError(f"job.loader(): steps is {steps}, an epoch has 1 to {most}")
        return most if steps is None else steps

    @property
    def description(self) -> str:
        """What is trained on, for people."""
        try:
            return f"{type(self._dataset).__name__} of {len(self._dataset)} examples"
        except TypeError:
            return type(self._dataset).__name__

    @property
    def data_hash(self) -> str:
        """Of the examples, if they are there as tensors; all workers have the same.

        Of other data sets nothing is known but their length: to read them all would take
        long, and they may give other examples each time.
        """
        if not isinstance(self._dataset, data.TensorDataset):
            return ""
        digest = hashlib.blake2b(digest_size=8)
        for tensor in self._dataset.tensors:
            if tensor.layout != torch.strided or tensor.is_quantized:
                return ""
            digest.update(f"{tensor.dtype} {tuple(tensor.shape)} ".encode())
            values = files.bytes_of(tensor)
            digest.update(files.memory_of(values))
        return digest.hexdigest()

    def order_digest(self, epoch: int) -> str:
        """Of what a sampler's order has for an epoch, before the workers share it; empty without a sampler."""
        return "" if self._drawn is None else digest(self._drawn.of(epoch)[: self._used])

    def __len__(self) -> int:
        """Batches of this worker in an epoch; with ``elastic`` if all workers keep pace."""
        return self.steps_per_epoch * self.accumulate

    @property
    def dataset(self) -> Any:
        """What the batches are made of."""
        return self._dataset

    def __iter__(self) -> Iterator[Any]:
        this = object()
        try:
            yield from self._steps(self._loop.begin_epoch(self, this))
        finally:
            self._loop.left(this)

    def _steps(self, step: Optional[int]) -> Iterator[Any]:
        """``step``: of the epoch's steps as this loader counts them, one for each of its batches."""
        loop = self._loop
        if self.elastic is not None:
            loader = self.elastic.loader()
            while step is not None:
                loop.hands_out()  # Loading is the script's, too.
                for part, batch in enumerate(_Timed(loop, self.elastic.batches(loader, *loop.place.examples))):
                    if part > 0:
                        loop.check_in_step(step)
                    yield batch
                step = loop.after_batch(step)
            return
        if step is None:
            return
        epoch, position = divmod(step, self.steps_per_epoch)
        batches = self._batches(epoch, position)
        while step is not None and step // self.steps_per_epoch == epoch:
            if step % self.steps_per_epoch < position:  # It was lost, and comes again.
                position = step % self.steps_per_epoch
                batches = self._batches(epoch, position)
                if isinstance(self._dataset, data.IterableDataset):
                    position = 0  # From the first one on.
            while position < step % self.steps_per_epoch:  # Others did these steps.
                for _ in range(self.accumulate):
                    next(batches, None)
                position += 1
            if position == 0 and self._drawn is not None:
                loop.replicas.compare_order(epoch, self.order_digest(epoch))
            loop.hands_out()  # Loading is the script's, too.
            for part in range(self.accumulate):
                batch = next(batches, None)
                if batch is None and isinstance(self._dataset, data.IterableDataset):
                    batches = _Timed(loop, self._loader)
                    batch = next(batches, None)
                if batch is None:
                    raise RuntimeError(
                        f"job.loader(): the data ended at step {position} of the epoch's "
                        f"{self.steps_per_epoch}"
                    )
                yield batch
                if part + 1 < self.accumulate:
                    loop.check_in_step(step)
            position += 1
            step = loop.after_batch(step)

    def _batches(self, epoch: int, position: int) -> Iterator[Any]:
        if not isinstance(self._dataset, data.IterableDataset):
            if epoch != self._epoch:
                self._rest.batches = self._deal(epoch)
                self._epoch = epoch
            self._rest.position = position * self.accumulate
        if position == 0:
            return _Timed(self._loop, self._loader)
        # A DataLoader draws a number when it begins, and this epoch has begun before.
        random_state = torch.get_rng_state()
        batches = _Timed(self._loop, self._loader)
        torch.set_rng_state(random_state)
        return batches

    def _deal(self, epoch: int) -> List[List[int]]:
        """This worker's batches of an epoch, as rows of the data set."""
        batches: List[List[int]] = []
        for step in range(self.steps_per_epoch):
            found = self._places.of_step(epoch, step)
            if self._batch_sampler is not None:
                batches += found
            else:
                batches += [found[i : i + self.batch_size] for i in range(0, len(found), self.batch_size)]
        return batches
