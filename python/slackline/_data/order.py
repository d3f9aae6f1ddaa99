"""An order of a script's own: what its sampler draws, alike on all workers."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import sys
from typing import Any, Dict, Iterable, Iterator, List, Optional, Set

import torch
import torch.utils.data

from slackline import _core
from slackline._loop.worlds import World

# Numbers, or batches, that a script's sampler may draw in an epoch: they are kept.
_DRAWN_MAX = 1 << 25
# Samplers of the script whose draws are remembered.
_ORDERS_MAX = 4


@contextlib.contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The random numbers of PyTorch, NumPy and Python, which are the script's again after it."""
    numpy = sys.modules.get("numpy")
    of_python = random.getstate()
    of_numpy = numpy.random.get_state(legacy=False) if numpy is not None else None
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed(), which seeds GPUs, too.
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        if numpy is not None:
            numpy.random.seed(seed % 2**32)
        try:
            yield
        finally:
            random.setstate(of_python)
            if numpy is not None:
                numpy.random.set_state(of_numpy)


def _own_random(order: Any, seen: Set[int]) -> bool:
    numpy = sys.modules.get("numpy")
    kinds: Any = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    if isinstance(order, kinds):
        return True
    # A BatchSampler has a sampler, and those of scripts have what they like.
    if id(order) in seen or len(seen) > 100:
        return False
    seen.add(id(order))
    parts = getattr(order, "__dict__", {}).values()
    return any(
        isinstance(part, kinds) or (hasattr(part, "__iter__") and _own_random(part, seen))
        for part in parts
        if not isinstance(part, (torch.Tensor, torch.utils.data.Dataset, list, tuple, dict, str, bytes))
    )


def has_own_random(order: Any) -> bool:
    """Whether a sampler keeps random numbers of its own, which go on from draw to draw."""
    return _own_random(order, set())


def length(order: Any, option: str, steps: Optional[int]) -> Optional[int]:
    """How much a sampler draws in an epoch; None: it does not say so, and ``steps`` say what is needed.

    Raises ValueError if nobody says so, or if it is more than can be kept.
    """
    try:
        drawn: Optional[int] = len(order)
    except (TypeError, NotImplementedError, OverflowError):
        drawn = None
    if drawn is None and steps is None:
        raise ValueError(
            f"job.loader(): {option} is a {type(order).__name__} without a length, so an epoch has no end; say "
            "with steps=... how many steps of each worker are one"
        )
    if drawn is not None and drawn > _DRAWN_MAX and steps is None:
        raise ValueError(
            f"job.loader(): {option} has {drawn} numbers in an epoch, and at most {_DRAWN_MAX} are kept; say with "
            "steps=... how many steps of each worker are an epoch"
        )
    return drawn


class Drawn:
    """What a sampler draws for each epoch. The script's own random numbers stay as they are.

    Before each draw the random numbers of PyTorch, NumPy and Python are seeded, from the
    job's seed and the epoch. A sampler with a generator of its own draws all epochs in
    order, so that a worker that comes later draws what the others have drawn, and of each
    equally much.
    """

    def __init__(self, order: Iterable[Any], seed: int, most: Optional[int]) -> None:
        """``most``: what is drawn in an epoch, if the sampler has more. None: all, which has an end."""
        self._order = order
        self._most = most
        self._seed = seed
        self._epoch = -1  # Which was drawn last.
        self._last: List[Any] = []
        self._in_order = has_own_random(order)

    def want(self, most: Optional[int]) -> None:
        """Of each epoch it has so much at least. Raises ValueError if the next draws would be others by that."""
        if self._most is None or (most is not None and most <= self._most):
            return
        if self._in_order:
            raise ValueError(
                f"job.loader(): {most} of the sampler's numbers are an epoch of this loader, and "
                f"{self._most} of that which was made first. It has random numbers of its own, of which it takes as "
                "many in each epoch as the first loader needs: make the loader with the longest epoch first, give "
                "each a sampler, or leave the sampler's own generator out"
            )
        self._most = most
        self._epoch = -1  # It was cut off, and is drawn again.

    def of(self, epoch: int) -> List[Any]:
        """What is drawn for the epoch. With random numbers of its own, not for an earlier one again."""
        if epoch == self._epoch:
            return self._last
        for passed in range(self._epoch + 1, epoch if self._in_order else 0):
            self._draw(passed)
        self._last = self._draw(epoch)
        self._epoch = epoch
        return self._last

    def _draw(self, epoch: int) -> List[Any]:
        with _seeded(self._seed * 1_000_003 + epoch):
            return list(itertools.islice(self._order, self._most))


class Orders:
    """Those of a job's loaders. A sampler that a script gives in each epoch goes on with what it has drawn."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._drawn: Dict[int, Drawn] = {}  # By id of the sampler.

    def of(self, order: Iterable[Any], most: Optional[int] = None) -> Drawn:
        """What the sampler draws, ``most`` of it in an epoch."""
        drawn = self._drawn.get(id(order)) or Drawn(order, self._seed, most)
        drawn.want(most)
        self._drawn.pop(id(order), None)
        self._drawn[id(order)] = drawn  # The last one.
        while len(self._drawn) > _ORDERS_MAX:  # A script may make one for each epoch.
            del self._drawn[next(iter(self._drawn))]
        return drawn


class Places:
    """What is at the places of each epoch's order: rows of the data set, or batches of a batch_sampler.

    The order is that of the data set, shuffled or not, or what a sampler has drawn.
    """

    def __init__(
        self, count: int, of_step: int, world: World, shuffle: bool, elastic: bool = False
    ) -> None:
        """``count``: of an epoch; ``of_step``: of those, what one worker has in a step.

        Raises ValueError if they do not make one step.
        """
        self._count = count
        self._elastic = elastic
        self._sampler = _core.Sampler(
            count, of_step, world.rank, world.world_size, world.seed, elastic, shuffle
        )
        self.steps_per_epoch: int = 0 if elastic else self._sampler.steps_per_epoch
        self._drawn: Optional[Drawn] = None
        self._in_batches = False

    def take_order(self, drawn: Drawn, count: int, in_batches: bool = False) -> None:
        """It is that of a sampler, of which each epoch has so many."""
        self._drawn, self._count, self._in_batches = drawn, count, in_batches

    def of_step(self, epoch: int, step: int) -> List[Any]:
        """What this worker has in a step of an epoch."""
        _, begin, end = self._sampler.places(step)
        return self.between(epoch, begin, end)

    def between(self, epoch: int, begin: int, end: int) -> List[Any]:
        """What is at the places [begin, end)."""
        if self._drawn is None:
            return self._sampler.at(epoch, begin, end)
        drawn = self._drawn.of(epoch)
        # With elastic sampling every example of an epoch is trained on.
        if len(drawn) < self._count or (self._elastic and len(drawn) > self._count):
            what = "batches" if self._in_batches else "examples"
            raise ValueError(
                f"job.loader(): the sampler has drawn {len(drawn)} {what} for epoch {epoch}, and "
                f"{self._count} are required"
            )
        return [list(one) if self._in_batches else int(one) for one in drawn[begin:end]]


def digest(drawn: List[Any]) -> str:
    """Of what was drawn, to compare it with what other workers have drawn."""
    return hashlib.blake2b(repr(drawn).encode(), digest_size=8).hexdigest()
