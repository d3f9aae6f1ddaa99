"""Comparisons between workers, at the start and in steps by all-reduce."""

from __future__ import annotations

from typing import Dict, List

import torch

from slackline._loop.batches import Batches
from slackline._loop import agreement
from slackline._loop.gathers import Gathers
from slackline._loop.model import Model
from slackline._loop.place import Place
from slackline._loop.words import warn
from slackline._loop.worlds import World
from slackline._model.values import totals
from slackline._optim.groups import Optimizers

# Steps by all-reduce between two looks at whether all workers have the same; more often at first.
_STEPS_BETWEEN_LOOKS = 128
_FIRST_LOOKS = 4
_FIRST_EPOCHS = 16  # Each of these begins with one.


class Replicas:
    """Brings what all workers have to have alike, and says what differs."""

    def __init__(self, world: World, place: Place, gathers: Gathers, optimizers: Optimizers) -> None:
        self._world = world
        self._place = place
        self._gather = gathers.gather
        self._optimizers = optimizers
        self._agreed_at = -1  # Steps that were done when replicas were compared last.

    def agree_at_start(self, loader: Batches, model: Model) -> None:
        """What is not trained becomes the first worker's. Raises ValueError for what cannot."""
        if self._world.world_size == 1:
            return
        call, described = "job.loader()", "the first batch"
        tensors = agreement.untrained(
            model.tables.module, [table.parameter for table in model.tables.tables]
        )
        described_tensors = agreement.describe(tensors, self._world.gather_bytes_max // 2)
        mine = {"untrained": described_tensors, "order": loader.order_digest(0)}
        brought = self._gather(call, described, mine)
        first = brought[0][0]
        agreement.check_order([(rank, theirs["order"]) for rank, theirs in brought])
        names = agreement.differing([(rank, theirs["untrained"]) for rank, theirs in brought])
        if not names:
            return
        agreement.check_sendable(names, tensors)
        rank = self._world.rank
        parts = agreement.pieces(names, tensors)
        sent = [
            dict(self._gather(call, described, part if rank == first else None))[first]
            for part in parts
        ]
        if rank != first:
            agreement.take(names, tensors, torch.cat(sent))
            warn(
                rank,
                f"{agreement.some_names(names)}, which are not trained, begin with the values of worker {first}",
            )

    def compare_order(self, epoch: int, digest: str) -> None:
        """Raises ValueError if a sampler has drawn other orders on other workers.

        Compared at the start in all modes, and after that where workers do the same steps at
        the same time anyhow.
        """
        if epoch == 0 or self._world.world_size == 1 or not self._world.steps_together:
            return
        brought = self._gather("job.loader()", "the order of an epoch", digest)
        agreement.check_order(brought)

    def looks_at(self, step: int) -> bool:
        """Whether the replicas of the step are compared, if it is by all-reduce."""
        if self._world.world_size == 1 or self._place.elastic:
            return False
        per_epoch = self._place.steps_per_epoch
        epoch, place = divmod(step, per_epoch)
        # Of many short epochs not each begins with a look, which takes part of a millisecond.
        every = -(-_STEPS_BETWEEN_LOOKS // (4 * per_epoch))
        of_epoch = place == 0 and (epoch < _FIRST_EPOCHS or epoch % every == 0)
        return step > 0 and (step < _FIRST_LOOKS or step % _STEPS_BETWEEN_LOOKS == 0 or of_epoch)

    def compare(self, model: Model) -> None:
        """By all-reduce: raises RuntimeError if parameters differ, and takes the first worker's rates and momenta."""
        done = self._place.steps_done
        self._agreed_at = done
        rates = self._optimizers.options_now()
        mine = {"values": totals(model.tables), "rates": rates}
        brought = self._gather("job.loader()", "a look at the replicas", mine)
        agreement.check_replicas(done, [(rank, of["values"]) for rank, of in brought])
        first = agreement.first_rates([(rank, of["rates"]) for rank, of in brought], rates)
        if first is None:
            return
        warn(
            self._world.rank,
            f"step {done}: {_options_text(rates, first[1], first[0])}, whose rate counts: "
            "let the scheduler see the same on all workers, for example "
            "scheduler.step(job.all_reduce(loss, 'mean'))",
        )
        self._optimizers.set_options(first[1])

    def compare_last(self, model: Model) -> None:
        """After the last step by all-reduce: what follows is the trained model."""
        place = self._place
        at_end = not place.elastic and place.all_done
        if model.keeps_model and self._world.world_size > 1 and at_end and self._agreed_at < place.steps_done:
            self.compare(model)

    def compare_skipped(self, step: int, skipped: List[int], model: Model) -> None:
        """By all-reduce: raises RuntimeError if workers do not step the same parameters."""
        if self._world.world_size == 1 or self._place.elastic:
            return
        kept = set(skipped)
        stepping = [t.name for index, t in enumerate(model.tables.tables) if index not in kept]
        said = agreement.some_names(stepping) or "nothing: it does not call optimizer.step(), or skips it"
        brought = self._gather("optimizer.step()", "a look at what steps", said)
        agreement.check_steps(step, brought)

    def agree_on_skip(self, skips: bool, together: bool) -> bool:
        """Whether any worker skips its step, where all have to; else whether this one does.

        ``together``: all workers do the step together.
        """
        if self._world.world_size == 1 or not (self._world.steps_together or together):
            return skips
        brought = self._gather("GradScaler.step()", "GradScaler.step()", skips)
        return any(value for _, value in brought)


def _options_text(here: List[Dict[str, float]], there: List[Dict[str, float]], worker: int) -> str:
    """What differs, of each group: "the learning rate is [0.1] here and [0.2] on worker 0"."""
    said = []
    for option, word in (("lr", "learning rate"), ("momentum", "momentum")):
        mine, theirs = ([of.get(option) for of in options] for options in (here, there))
        if mine != theirs:
            said.append(f"the {word} is {mine} here and {theirs} on worker {worker}")
    return ", ".join(said)
