"""Where a worker is in its job."""

from __future__ import annotations

from typing import Optional

from slackline._loop.batches import Batches
from slackline._loop.worlds import Work


class Place:
    """The present step, and what is left of the job.

    The step loop writes it. What waits, compares or ends reads it, and needs no more of the loop.
    """

    def __init__(self) -> None:
        self._loader: Optional[Batches] = None
        self._work: Optional[Work] = None
        # How often optimizers step for a batch, at most; each is a step of the job.
        self.steps_per_batch = 0
        self.steps_per_epoch = 0
        self.step: Optional[int] = None  # The one that was handed out and is not finished.
        self.ahead: Optional[int] = None  # The next epoch's first, if it was handed out already.
        self.examples = (0, 0, 0)  # With elastic sampling: epoch, begin and end of the step that was taken last.
        self.epoch_seen = 0  # With elastic sampling: the latest epoch that this worker had a step of.
        self.steps_done = 0
        self.over = False  # There are no more steps for this worker.
        self.concluding = False  # This worker has to evaluate the trained model and conclude the job.
        self.was_chief = False  # This worker has concluded the job, or is about to.
        self.finished = False

    def begin(self, loader: Batches, work: Work) -> None:
        """The job begins, with the first loop over batches."""
        self._loader = loader
        self._work = work
        self.steps_per_epoch = work.steps_per_epoch

    @property
    def begun(self) -> bool:
        return self._loader is not None

    @property
    def loader(self) -> Batches:
        """That whose steps the job has. Raises RuntimeError before the first batch."""
        if self._loader is None:
            raise RuntimeError("the job has not begun; it begins with the first batch of a job.loader()")
        return self._loader

    @property
    def elastic(self) -> bool:
        """Whether workers do different steps. Not before the first batch."""
        return self._loader is not None and self._loader.elastic is not None

    @property
    def steps_total(self) -> int:
        """As ``loader``, of the job's length."""
        if self._work is None:
            raise RuntimeError("the job has not begun; it begins with the first batch of a job.loader()")
        return self._work.steps_total

    @property
    def all_done(self) -> bool:
        """Whether this worker knows that all steps are done; of an elastic job it may be wrong."""
        return self.steps_done >= self.steps_total

    @property
    def stopped_early(self) -> bool:
        return self.over and not self.all_done

    def at_begin(self, step: int) -> bool:
        """Whether a loop over batches begins with the step."""
        return not self.elastic and step % self.steps_per_epoch == 0

    def epoch_of(self, step: int) -> int:
        """The epoch of a step that was taken last."""
        if not self.elastic:
            return step // self.steps_per_epoch
        # A lost worker's examples may be of an epoch that is over here.
        self.epoch_seen = max(self.epoch_seen, self.examples[0])
        return self.epoch_seen
