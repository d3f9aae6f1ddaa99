"""The steps of a worker: which one is asked for, open, handed over, finished."""

from __future__ import annotations

from typing import Any, Dict, Iterator, Optional

import torch

from slackline import _core
from slackline._loop.batches import Batches
from slackline._loop.evaluations import Evaluations
from slackline._loop.gathers import Gathers
from slackline._loop.gradients import Gradients
from slackline._loop.kept import Kept
from slackline._loop.model import Model
from slackline._loop.opening import say_begin, seed_all, work_of
from slackline._loop.passes import Passes
from slackline._loop.place import Place
from slackline._loop.replicas import Replicas
from slackline._loop.states import States
from slackline._loop.words import number, shortened, warn
from slackline._loop.worlds import World
from slackline._model.values import looks_at_all
from slackline._optim.groups import Optimizers, RuledGroups, check_all_trained
from slackline._optim.state import TableState


class StepLoop:
    """What loaders and optimizers of a script have of its job: each batch is a step, or several.

    A loader asks with ``begin_epoch()`` and ``after_batch()`` for the number of its next batch,
    and an optimizer hands the gradients of the open step over with ``finish_step()``. Steps
    that the script leaves out change nothing; a step that is lost comes again with its batch.
    """

    def __init__(self, world: World, seeds: bool) -> None:
        """``seeds``: the random numbers of workers become different ones with the first batch."""
        self.world = world
        self.place = Place()
        self.gathers = Gathers(world, self.place)
        self.optimizers = Optimizers()
        self.replicas = Replicas(world, self.place, self.gathers, self.optimizers)
        self.evaluations = Evaluations(world)
        self.states = States(world, self.place, self.gathers)
        self.passes = Passes(world.rank, self.place)
        self.kept = Kept()
        self.scaled = ""  # What scale_lr has done, for people.
        self._seeds = seeds
        self._model: Optional[Model] = None
        self._gradients: Optional[Gradients] = None
        self._batch: Optional[int] = None  # The script has it; its first step is steps_per_batch * batch.
        self._calls = 0  # How often step() was called with this batch.
        self._stepped = False  # The script has called step() at all.
        self._reached = False  # A backward has made a gradient.
        self._keep: Optional[int] = None  # The checkpoint that waits for what the script has now.

    # ---- What the script has given -------------------------------------------

    @property
    def model(self) -> Model:
        """Raises RuntimeError before ``job.model()``."""
        if self._model is None:
            raise RuntimeError("the job has no model yet: call job.model() first")
        return self._model

    @property
    def has_model(self) -> bool:
        return self._model is not None

    def take_model(self, model: Model) -> None:
        """The job's, once."""
        self._model = model

    @property
    def gradients(self) -> Gradients:
        """Raises RuntimeError before ``job.optimizer()``."""
        if self._gradients is None:
            raise RuntimeError("the job has no optimizer yet: call job.optimizer() first")
        return self._gradients

    def take_optimizer(
        self, optimizer: RuledGroups, steps_per_batch: int, overlap: Optional[bool]
    ) -> None:
        """One of the job's, over parameters that no other has."""
        self.optimizers.each.append(optimizer)
        self.place.steps_per_batch += steps_per_batch
        if self._gradients is None:
            self._gradients = Gradients(self.world, self.model, self.optimizers, overlap)
        if len(self.optimizers.each) > 1:  # A backward makes gradients of others', too.
            self._gradients.overlap.never("with several optimizers")
        if self.place.steps_per_batch > 1:  # A backward may be of a forward before the last step.
            self.model.arrivals.never("with several steps for a batch")

    def warn(self, text: str) -> None:
        warn(self.world.rank, text)

    # ---- Epochs --------------------------------------------------------------

    def epochs(self, epochs: Optional[float]) -> Iterator[int]:
        """As ``Job.epochs()``."""
        place, passes = self.place, self.passes
        passes.begin_epochs(epochs)
        # A worker that comes later has examples of a later epoch.
        epoch = 0 if place.begun else self.world.begins_in_epoch()
        place.epoch_seen = epoch
        while not place.over:
            done = place.steps_done
            passes.count = 0
            passes.counted = epoch
            yield epoch
            if not place.begun or (place.steps_done == done and not place.over):
                raise RuntimeError(
                    "job.epochs(): no step was done in this epoch; iterate a job.loader() in it"
                )
            self._check_whole_epoch()
            self._look_ahead()
            if place.ahead is not None:
                following = place.epoch_of(place.ahead)
                if place.elastic and following == epoch:
                    raise RuntimeError(
                        f"the loop over batches was left before the end of epoch {epoch}. {passes.fewer()}"
                    )
                epoch = following
        passes.epochs_ended = True
        self.finish()

    def _check_whole_epoch(self) -> None:
        self._end_batch()
        self.passes.check_whole_epoch()

    # ---- For loaders ---------------------------------------------------------

    def begin_epoch(self, loader: Batches, loader_pass: object) -> Optional[int]:
        """The number of the epoch's first batch; none when the job has no more."""
        if not self.optimizers.each:
            raise RuntimeError("job.loader(): call job.model() and job.optimizer() first")
        place, passes = self.place, self.passes
        self._end_batch()
        if place.step is not None and not place.at_begin(place.step):
            raise RuntimeError(
                f"step {place.step}: its batch was taken, and the loop was left before "
                f"optimizer.step(). {passes.fewer()}"
            )
        if place.begun:
            self._check_whole_epoch()
            passes.check_another(loader)
            passes.check_alike(loader)
        else:
            self._open(loader)
        passes.count += 1
        passes.current = loader_pass
        if place.step is not None:  # A look at the first batch, which comes again.
            return self._begin_batch(place.step)
        if place.ahead is not None:
            step, place.ahead = place.ahead, None
            self._check_values()  # The script has done something since the step was taken.
            return self._begin_batch(step)
        if place.over:
            return None
        following = self._next_step()
        if following is not None and passes.in_epochs and place.epoch_of(following) != passes.counted:
            self.warn(
                f"the epoch has changed while this worker came: its first loop over batches has those of epoch "
                f"{place.epoch_of(following)}, and counts as epoch {passes.counted}"
            )
        return self._begin_batch(following)

    def after_batch(self, batch: int) -> Optional[int]:
        """The number of the next one. The one at hand has to be finished."""
        place = self.place
        reached = self.gradients.overlap.any()
        self._end_batch(asked=True)
        step = batch * place.steps_per_batch
        self._reached = self._reached or reached
        epoch = place.epoch_of(step)
        if place.all_done and not place.elastic:
            # What follows is the end of the job. The script may have something to do
            # before it, together with the others, and with what it has trained.
            self._check_stepped()
            if not self.model.keeps_model and not place.over:
                self.states.fetch_parameters(self.model)
            return None
        following, place.ahead = place.ahead, None
        if following is None:
            following = self._next_step()
        else:
            self._check_values()
        if following is None:
            return None
        if place.epoch_of(following) != epoch:
            self._check_stepped()
            self._set_ahead(following)
            return None
        return self._begin_batch(following)

    def check_in_step(self, batch: int) -> None:
        """Raises RuntimeError if the step was finished before the last of its batches."""
        if self.place.step is None or self._calls > 0:
            raise RuntimeError(
                f"step {batch * self.place.steps_per_batch}: optimizer.step() was called before the last of the "
                f"accumulate={self.place.loader.accumulate} batches"
            )

    def hands_out(self) -> None:
        """The script begins with a step: its data set, or with the first batch itself."""
        self.model.arrivals.watch()

    def left(self, loader_pass: object) -> None:
        """A loop over batches of the script ends, however that comes."""
        if self.has_model and loader_pass is self.passes.current:
            self.model.arrivals.leave()

    # ---- For optimizers ------------------------------------------------------

    def finish_step(self, optimizer: RuledGroups, loss: Any, skips: bool = False) -> None:
        """``step()`` of the optimizer, which ``skips``: its parameters stay as they are, too."""
        place = self.place
        if self._batch is None or (place.steps_per_batch == 1 and place.step is None):
            raise RuntimeError(
                "optimizer.step(): no step is open; it is called once for each step of a job.loader(). If it is "
                "called several times for a batch, give job.optimizer(..., steps_per_batch=N)"
            )
        if self._calls >= place.steps_per_batch:
            raise RuntimeError(
                f"optimizer.step(): it was called {self._calls + 1} times for one batch, and job.optimizer() was "
                f"told of {place.steps_per_batch}; give job.optimizer(..., steps_per_batch=N) to the one that "
                "steps more often"
            )
        due = self._due(self._batch)
        self._calls += 1
        if place.step != due:
            # Of a batch that comes again, or that others have gone on from: it was done before
            # (the job's step is a later one), or will be.
            optimizer.zero_grad()
            return
        self._stepped = True
        if skips:
            optimizer.zero_grad()
        self._do_step(due, None if skips else optimizer)
        if loss is not None:
            self.world.log("loss", number("loss", loss))
        self._go_on_in_batch(self._batch)

    def agree_on_skip(self, skips: bool) -> bool:
        """Whether any worker skips its step, where all have to; else whether this one does."""
        return self.replicas.agree_on_skip(skips, self.model.is_done_together)

    def optimizer_states(self) -> Dict[torch.nn.Parameter, TableState]:
        """By parameter; empty before the job has begun, if it begins with none."""
        return self.states.by_parameter(self.model)

    # ---- Steps of a batch ----------------------------------------------------

    def _begin_batch(self, step: Optional[int]) -> Optional[int]:
        """The batch of the step, which is mostly its first one, is handed out."""
        self._batch = None if step is None else step // self.place.steps_per_batch
        self._calls = 0
        self._begin_step(step)
        return self._batch

    def _end_batch(self, asked: bool = False) -> None:
        """The script is done with its batch: steps that it has left out change nothing.

        ``asked``: for the next one, so that it may have left out all. Gradients stay, and add up.
        """
        place = self.place
        while self._batch is not None and place.step is not None and (asked or self._calls > 0):
            self._calls = place.step - self._batch * place.steps_per_batch + 1
            self._do_step(place.step, None)
            self._go_on_in_batch(self._batch)

    def _go_on_in_batch(self, batch: int) -> None:
        """Takes the next step, if it is of the batch at hand."""
        place = self.place
        if self._calls >= place.steps_per_batch or place.ahead is not None or place.over:
            return
        step = self._next_step()
        if step is None:
            return
        if step // place.steps_per_batch == batch and step >= self._due(batch):
            self._begin_step(step)
            self.hands_out()
        else:  # The last one is lost and comes again, or others have done these.
            self._set_ahead(step)

    def _due(self, batch: int) -> int:
        """The step that the next call of step() is."""
        return batch * self.place.steps_per_batch + self._calls

    def _check_stepped(self) -> None:
        """At the end of an epoch. Raises RuntimeError if the script has forgotten step()."""
        if self._stepped:
            return
        backward = "" if self._reached else "; backward() has not reached any parameter of job.model()"
        raise RuntimeError(
            f"step {self.place.steps_done}: an epoch has ended without any optimizer.step(){backward}. Call step() of "
            "what job.optimizer() returned; to evaluate, take the batches of a torch.utils.data.DataLoader"
        )

    def is_over(self) -> bool:
        """Whether the job has no more steps for this worker. May learn it now."""
        self._end_batch()
        if self.place.elastic or self.place.all_done:
            self._look_ahead()
        return self.place.over

    def _look_ahead(self) -> None:
        """Learns what follows after a loop that took its last batch without asking for more."""
        place = self.place
        if place.step is None and place.ahead is None and not place.over:
            self._set_ahead(self._next_step())

    def _set_ahead(self, step: Optional[int]) -> None:
        """The next step, before which the script does something else."""
        self.model.arrivals.wait_for_all()
        self.place.ahead = step
        if step is not None:
            self.model.note_values(step, whole=True)

    def _check_values(self) -> None:
        self.model.check_values(self.place.all_done)

    # ---- A step --------------------------------------------------------------

    def _begin_step(self, step: Optional[int]) -> None:
        place, model = self.place, self.model
        if step is None:
            place.step = None
            self.gathers.step_begins()
            return
        self._keep_now()  # The script is done with all before this step.
        place.step = step
        self.gathers.step_begins()
        place.steps_done = max(place.steps_done, step)
        if looks_at_all(step) or place.at_begin(step):
            model.tables.check_module()
        if model.keeps_model and self.replicas.looks_at(step):
            self.replicas.compare(model)
        model.note_values(step)
        self.gradients.overlap.begin_step()

    def _do_step(self, step: int, optimizer: Optional[RuledGroups]) -> None:
        """The step at hand, in which the parameters of other optimizers stay as they are."""
        model, gradients = self.model, self.gradients
        model.end_step(step)
        options, handed, skipped = gradients.end_step(optimizer)
        if model.is_done_together and (step == 0 or self.replicas.looks_at(step)):
            self.replicas.compare_skipped(step, skipped, model)
        left = gradients.take(step, handed, options, set(skipped))
        gradients.forget(optimizer)
        try:
            if self.world.finish_step(left, options, skipped):
                self.place.steps_done = step + 1
        except _core.JobError:  # No step follows, and the script may save what there is.
            self.place.step = None
            raise
        if model.keeps_model:
            model.tables.refresh()
        elif step == 0:  # It has brought one worker's values to all.
            model.note_values(0)
        self.place.step = None

    # ---- What comes from the job ---------------------------------------------

    def _next_step(self) -> Optional[int]:
        while True:
            task = self._take_task()
            if task is None:
                return None
            if isinstance(task, _core.Evaluation):
                self.evaluations.ask(task, self.model.tables, self.gradients.rules)
            elif not isinstance(task, _core.Conclusion):
                if task.examples is not None:
                    self.place.examples = task.examples
                return int(task.clock)

    def _take_task(self) -> Any:
        place, model = self.place, self.model
        self.evaluations.raise_error()
        if not place.over:
            self._check_values()
            self.replicas.compare_last(model)
        task = self.world.next()
        while isinstance(task, (_core.Keep, _core.Restore)):
            if isinstance(task, _core.Restore):
                self.kept.restore(task.state, model.tables.module, self.optimizers, self.warn)
            else:
                self._keep = task.cut
                if task.last:
                    self._keep_now()
            task = self.world.next()
        if task is None:
            place.over = place.finished = True
        elif isinstance(task, _core.Conclusion):
            model.tables.refresh()
            self.states.keep_last(model)
            place.over = place.concluding = place.was_chief = True
            return None
        elif not isinstance(task, _core.Evaluation):
            model.take(task)
        return task

    def _keep_now(self) -> None:
        """A checkpoint that cannot have the script's state is given up; the training goes on."""
        at, self._keep = self._keep, None
        if at is None:
            return
        try:
            state = self.kept.state(self.model.tables.module, self.optimizers, self.warn)
            self.world.kept(at, state, "")
        except Exception as error:
            self.world.kept(at, None, shortened(f"{type(error).__name__}: {error}"))

    # ---- The begin and the end -----------------------------------------------

    def _open(self, loader: Batches) -> None:
        model, gradients, place, world = self.model, self.gradients, self.place, self.world
        check_all_trained(model.names(), self.optimizers)
        gradients.assign()
        epochs = world.epochs if world.epochs is not None else self.passes.epochs
        work = work_of(loader, world, epochs, place.steps_per_batch, model.arrivals.possible)
        self.passes.length_by_default = epochs is None and world.max_steps is None
        self.replicas.agree_at_start(loader, model)
        model.tables.check_module()
        place.begin(loader, work)
        model.tables.fetch()
        say_begin(model, work, world, place.steps_per_batch, self.scaled)
        world.open(model.tables, gradients.rules, work)
        begins_with = self.states.first(model, gradients, self.optimizers)
        if begins_with is not None:
            world.begin_with(begins_with)
        if self._seeds:  # Masks of dropout and the like differ between workers.
            seed_all(world.seed * 7919 + 1 + world.rank)

    def start_evaluation(self) -> None:
        """There is a function now: for what the job has asked, or for the trained model."""
        if self.place.concluding:
            self.evaluations.evaluate_final(self.model.tables, self.gradients.rules)
        elif self.evaluations.asked:
            self.evaluations.start_asked(self.model.tables, self.gradients.rules)

    def finish(self) -> None:
        """As ``Job.finish()``."""
        place, evaluations = self.place, self.evaluations
        if not place.begun or place.finished:
            return
        if not self.is_over():
            raise RuntimeError(
                f"job.finish(): {place.steps_done} of {place.steps_total} steps are done"
            )
        evaluations.wait()
        evaluations.raise_error()
        tables = self.model.tables
        while not place.finished:
            if place.concluding:
                if evaluations.final_scores is None:
                    evaluations.evaluate_final(tables, self.gradients.rules)
                tables.set_companions(tables.companions())
                self.world.conclude({}, evaluations.final_scores or {})
                place.concluding = False
            self._take_task()
