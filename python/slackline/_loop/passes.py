"""The loops of a script, over epochs and over batches, as the job's epochs have them."""

from __future__ import annotations

from typing import Optional

from slackline._loop.batches import Batches
from slackline._loop.place import Place
from slackline._loop.words import warn


class Passes:
    """Sees that each loop over batches is one epoch of the job."""

    def __init__(self, rank: int, place: Place) -> None:
        self._rank = rank
        self._place = place
        self.epochs: Optional[float] = None  # How many, as the script says.
        self.in_epochs = False
        self.epochs_ended = False
        self.length_by_default = False  # Neither the config nor the script says how long the job is.
        self.count = 0  # Loops over batches in the present round of epochs().
        self.counted = 0  # The epoch that epochs() has yielded last.
        self.current: Optional[object] = None  # The loop over batches that has begun last.
        self._end_said = False

    def begin_epochs(self, epochs: Optional[float]) -> None:
        """Raises RuntimeError if the script has begun one such loop, or more than its length allows."""
        if self.in_epochs:
            raise RuntimeError(
                "job.epochs() is for one loop, and ends with the job; give it the epochs of all loops"
            )
        self.in_epochs = True
        self.epochs = epochs
        if self._place.begun and self.length_by_default and epochs not in (None, 1):
            raise RuntimeError(
                f"job.epochs({epochs}): the job has begun with the first batch, which was taken before, and has "
                "one epoch. For a look at a batch, take it from a torch.utils.data.DataLoader, or in the loop"
            )

    def fewer(self) -> str:
        """What to do instead of leaving a loop over batches."""
        if self._place.elastic:
            return "A loop over batches goes to its end; give sampler= for fewer examples"
        return "A loop over batches goes to its end; for shorter epochs give job.loader(steps=N)"

    def check_whole_epoch(self) -> None:
        """Raises RuntimeError if the script's loop has left steps of its epoch to nobody."""
        place = self._place
        per_epoch = place.steps_per_epoch
        at_end = place.steps_done % per_epoch == 0 or place.all_done
        if place.elastic or place.over or at_end or place.ahead is not None:
            return
        raise RuntimeError(
            f"the loop over batches was left after {place.steps_done % per_epoch} of the {per_epoch} steps "
            f"of its epoch, and the job's epochs all have as many. {self.fewer()}"
        )

    def check_another(self, loader: Batches) -> None:
        """Raises RuntimeError if the script goes over the batches more often than the job does."""
        place = self._place
        again = self.in_epochs and self.count > 0 and place.step is None and not place.elastic
        if again and not place.over:
            raise RuntimeError(
                "job.loader(): a second loop over batches in one round of job.epochs(). Each is an epoch "
                "of the job, so job.epochs() counts one for each: give it the number of loops, and have "
                f"one in each round{_for_other_data(loader, place.loader)}"
            )
        if self.epochs_ended:
            raise RuntimeError(
                "job.loader(): the job is over, and has no batches any more; to evaluate, take those of a "
                "torch.utils.data.DataLoader"
            )
        done = place.over or (loader.elastic is None and place.all_done)
        if done and not place.stopped_early and not self.in_epochs:
            if self.length_by_default:
                raise RuntimeError(
                    "job.loader(): the job has one epoch, which is done. For more write "
                    "`for epoch in job.epochs(N):` around the loop over batches, or give train.epochs in "
                    "the config"
                )
            if not self._end_said:
                warn(
                    self._rank,
                    "the epochs that the config gives are done; a loop over batches has none any more",
                )
            self._end_said = True

    def check_alike(self, loader: Batches) -> None:
        """Raises ValueError if its epochs are not those of the job."""
        of_job = self._place.loader
        if (loader.elastic is None) != (of_job.elastic is None):
            raise ValueError("job.loader(): elastic is the same for all loaders of a job")
        if loader.elastic is not None and of_job.elastic is not None:
            if loader.elastic.examples != of_job.elastic.examples:
                raise ValueError(
                    f"job.loader(): this one has {loader.elastic.examples} examples in an epoch, the one "
                    f"before had {of_job.elastic.examples}; the job's epochs have equal length"
                )
        if loader.steps_per_epoch != of_job.steps_per_epoch:
            raise ValueError(
                f"job.loader(): this one has {loader.steps_per_epoch} steps in an epoch, the one "
                f"before had {of_job.steps_per_epoch}; the job's epochs have equal length"
                f"{_for_other_data(loader, of_job)}"
            )


def _for_other_data(loader: Batches, of_job: Batches) -> str:
    if loader.dataset is of_job.dataset:
        return ""
    return ". To evaluate on other data, take the batches of a torch.utils.data.DataLoader"
