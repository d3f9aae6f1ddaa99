"""The begin of a job: how long it is, and what is said of it."""

from __future__ import annotations

import math
import random
import sys
from typing import Optional

import torch

from slackline import _core
from slackline._tensors import devices
from slackline._loop.batches import Batches
from slackline._loop.model import Model
from slackline._loop.worlds import Work, World


def work_of(
    loader: Batches, world: World, epochs: Optional[float], steps_per_batch: int, by_table: bool
) -> Work:
    """The length of a job of so many epochs (None: nobody says) over these batches.

    Raises ValueError for one that has no steps, or none that the optimizers can do.
    """
    if epochs is not None and not (epochs > 0 and math.isfinite(epochs)):
        raise ValueError(f"job.epochs(): {epochs} epochs; a number above 0 is required")
    batch = loader.batch_size * loader.accumulate
    times = steps_per_batch
    if times > 1 and loader.elastic is not None:
        raise ValueError(
            f"job.loader(): elastic=True does not go with {times} optimizer steps for a batch; leave elastic out"
        )
    if world.max_steps is not None and world.max_steps % times != 0:
        raise ValueError(
            f"job.loader(): the config has max_steps: {world.max_steps}, and the script's optimizers have "
            f"{times} steps for each batch; a multiple of {times} is required"
        )
    elastic = None
    if loader.elastic is not None:
        count = loader.elastic.examples
        total, per_epoch, examples = _core.elastic_length(
            epochs, world.max_steps, count, batch, world.world_size
        )
        loader.elastic.check(examples)
        elastic = (count, examples)
    else:
        most = None if world.max_steps is None else world.max_steps // times
        batches, of_epoch = _core.length(epochs, most, loader.steps_per_epoch)
        total, per_epoch = batches * times, of_epoch * times
    described = f"{loader.description}, {batch * world.world_size} in a step"
    data_hash = loader.data_hash if world.world_size > 1 else ""
    return Work(total, per_epoch, batch, described, data_hash, elastic, by_table)


def say_begin(model: Model, work: Work, world: World, steps_per_batch: int, scaled: str) -> None:
    """What the job is, on its first worker. ``scaled`` is what scale_lr has done."""
    if world.rank != 0:
        return
    if world.through_host:
        where = f"; {world.device} through copies on the host, because {world.through_host}"
    else:
        where = "" if world.device == devices.CPU else f"; on {world.device}"
    steps_each = f", {steps_per_batch} steps each" if steps_per_batch > 1 else ""
    print(
        f"slackline: {len(model.tables)} tables, "
        f"{sum(t.values.numel() for t in model.tables.tables)} parameters; "
        f"{'about ' if work.elastic else ''}{work.steps_total} steps, {work.steps_per_epoch} in an epoch; "
        f"batch {work.batch_size} x {world.world_size} workers = "
        f"{work.batch_size * world.world_size}{steps_each}{scaled}{where}",
        file=sys.stderr,
        flush=True,
    )


def seed_all(seed: int) -> None:
    """The random numbers of PyTorch, Python and NumPy."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
