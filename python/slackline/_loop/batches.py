"""What the steps of a job need of a loader."""

from __future__ import annotations

from typing import Any, Optional, Protocol


class ElasticEpochs(Protocol):
    """Epochs whose examples the coordinator gives out."""

    examples: int  # Of an epoch.

    def check(self, total: int) -> None:
        """Raises ValueError if a step of a job with so many examples has too few for its batches."""


class Batches(Protocol):
    """A ``Loader``, as those see it that do not hand its batches out."""

    batch_size: int  # Examples of one batch.
    accumulate: int  # Batches of one step.
    steps_per_epoch: int

    @property
    def elastic(self) -> Optional[ElasticEpochs]:
        """None where all workers do the same number of steps."""

    @property
    def dataset(self) -> Any:
        """What the batches are made of."""

    @property
    def description(self) -> str:
        """What is trained on, for people."""

    @property
    def data_hash(self) -> str:
        """Of the examples; empty if it is not known."""

    def order_digest(self, epoch: int) -> str:
        """Of a sampler's order in an epoch; empty without a sampler."""
