"""A script's place in a job: model, optimizer, data, evaluation, the end."""

from __future__ import annotations

import atexit
import math
import os
import random
import signal
import sys
import threading
import traceback
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set, Union

import torch

from slackline import (
    _agreement,
    _collectives,
    _copies,
    _core,
    _device,
    _files,
    _rules,
    _sync_batch_norm,
    _values,
    _worlds,
)
from slackline._arrivals import Arrivals
from slackline._images import Images
from slackline._kept import Kept
from slackline._loader import Loader
from slackline._optimizer import Optimizer, Optimizers, Source, check_all_trained, make_optimizer
from slackline._optimizer_state import TableState, from_torch
from slackline._order import Drawn
from slackline._overlap import Overlap
from slackline._rules import Rule
from slackline._tables import Table, Tables
from slackline._values import Values

Scores = Union[None, float, torch.Tensor, Mapping[str, Union[float, torch.Tensor]]]
# An evaluation that takes longer says so this often, in seconds.
_PROGRESS_SECONDS = 2.0
# For an evaluation that nobody waits for any more, when the process ends.
_PATIENCE_SECONDS = 10.0
# Steps by all-reduce between two looks at whether all workers have the same; more often at first.
_STEPS_BETWEEN_LOOKS = 128
_FIRST_LOOKS = 4
_FIRST_EPOCHS = 16  # Each of these begins with one.
# Samplers of the script whose draws are remembered.
_ORDERS_MAX = 4
# Of a traceback in the summary of the run.
_TEXT_BYTES_MAX = 8192
# Whose lines are not what a user asks for who looks where an error came from.
_NOT_THE_SCRIPT = (os.path.dirname(__file__), os.path.dirname(torch.__file__), "<")


class Job:
    """What ``slackline.join()`` returns.

    In the order of a script: ``model()``, ``optimizer()``, ``loader()`` and the
    loop over ``epochs()``, ``evaluate()``, ``save()``. The main thread calls all
    of it. Errors of the job itself are ``slackline.JobError``: it was stopped,
    or has lost a process that it needs; the message says which.
    """

    def __init__(
        self, world: Union[_worlds.Joined, _worlds.Alone], seed: bool, error_ends_job: bool
    ) -> None:
        self._world = world
        self._error_ends_job = error_ends_job
        self._pid = os.getpid()
        self._tables: Optional[Tables] = None
        self._values: Optional[Values] = None  # Of the tables, as the job has written them.
        self._copy: Optional[Tables] = None  # That an evaluation computes with.
        self._shared_said = False  # What such a copy has in common with the model.
        self._optimizers = Optimizers()
        self._owner: List[Optional[Optimizer]] = []  # By table.
        self._groups: List[int] = []  # By table, among those of all optimizers.
        # How often optimizers step for a batch, at most; each is a step of the job.
        self._steps_per_batch = 0
        self._steps_per_epoch = 0
        self._batch: Optional[int] = None  # That the script has; step steps_per_batch * batch is its first.
        self._calls = 0  # Of step(), with this batch.
        self._overlap: Optional[Overlap] = None
        self._arrivals: Optional[Arrivals] = None
        self._epochs: Optional[float] = None  # As the script says.
        self._loader: Optional[Loader] = None  # Whose steps the job has.
        self._orders: Dict[int, Drawn] = {}  # By id of the script's sampler.
        self._in_epochs = False
        self._passes = 0  # Loops over batches in the present round of epochs().
        self._by_all_reduce = False  # The step that was taken last.
        self._summed = False  # The same, and the first step over servers.
        self._stepped = False  # The script has called step() at all.
        self._reached = False  # A backward has made a gradient.
        self._agreed_at = -1  # Steps that were done when replicas were compared last.
        self._step: Optional[int] = None  # That was handed out and not finished.
        self._ahead: Optional[int] = None  # The first of the next epoch, handed out.
        self._examples = (0, 0, 0)  # Elastic: epoch, begin, end of the step taken last.
        self._epoch_seen = 0
        self._epoch_counted = 0  # What epochs() has yielded last.
        self._sent_with: Optional[List[float]] = None  # Rate factors, by group.
        self._steps_done = 0
        self._over = False
        self._concluding = False
        self._evaluate: Optional[Callable[[torch.nn.Module], Scores]] = None
        self._asked: Optional[Any] = None  # An evaluation, while nobody knows how.
        self._evaluating: Optional[threading.Thread] = None
        self._evaluation_error: Optional[BaseException] = None
        self._final_scores: Optional[Dict[str, float]] = None
        # Of the optimizers: what the job begins with, and by table, what it ended with.
        self._first_states: Dict[torch.nn.Parameter, TableState] = {}
        self._last_state: Optional[List[TableState]] = None
        self._kept = Kept()
        self._keep: Optional[int] = None  # A checkpoint that waits for what the script has now.
        self._failed = False
        self._ended_by_signal = False
        self._sigterm_came = False  # The first, in a job with checkpoints.
        self._scaled = ""  # What scale_lr has done, for people.
        self._thread = threading.get_ident()
        self._gathered_at = (0, 0)  # The next collective's place, and its number there.
        self._images = Images(self._world.out)
        if slow := _core.choose_blas_kernels():
            self._warn(slow)
        if world.threads:
            _core.set_blas_threads(world.threads)
            torch.set_num_threads(world.threads)
        self._seeded = seed
        if seed:
            _seed(world.seed)
        atexit.register(self._at_exit)
        self._watch_errors()
        self._watch_signals()

    # ---- Who and where -------------------------------------------------------

    @property
    def rank(self) -> int:
        """Which worker this is, in [0, world_size)."""
        return self._world.rank

    @property
    def world_size(self) -> int:
        """How many workers the config has. Some of them may be gone."""
        return self._world.world_size

    @property
    def seed(self) -> int:
        """The config's ``train.seed``; the same for all workers."""
        return self._world.seed

    @property
    def data_dir(self) -> str:
        """Folder of data sets, as ``slackline run --data-dir`` names it; may be empty."""
        return self._world.data_dir

    @property
    def device(self) -> torch.device:
        """Where the model belongs: the GPU that ``worker { device: CUDA }`` in the config gives.

        Without that, and in a world of one, it is the CPU. ``net.to(job.device)`` before
        ``job.model()``, and batches, put a script there. The GPU is PyTorch's current one.
        """
        return self._world.device

    @property
    def out(self) -> str:
        """Folder of the run; empty if nothing is written."""
        return self._world.out

    @property
    def mode(self) -> str:
        """How the job begins to synchronise, as for ``--mode``; "alone" in a world of one."""
        return self._world.mode

    @property
    def steps(self) -> int:
        """Steps that are complete, as this worker knows."""
        return self._steps_done

    def __repr__(self) -> str:
        return (
            f"<slackline.Job '{self._world.job}' rank {self.rank} of {self.world_size}, {self.mode}>"
        )

    # ---- Model and optimizer -------------------------------------------------

    def model(
        self, module: torch.nn.Module, overlap: Optional[bool] = None
    ) -> torch.nn.Module:
        """Makes the module's parameters those of the job, and returns the module.

        Every parameter with ``requires_grad`` becomes a table. The job begins
        with the values that worker 0 has when the first batch is asked for, so
        they may be loaded from a file until then. All workers have to give
        modules with the same names and shapes; one that differs is refused by
        name. Move and convert the module before; with ``device: CUDA`` in the config its
        trained parameters have to be on ``job.device``. What is not trained, frozen
        parameters and buffers, begins with worker 0's values, too. From then on buffers,
        such as the running means of BatchNorm, are each worker's own; in the file of the
        trained model are those of the worker that writes it.

        Args:
            module: what is trained.
            overlap: whether a step over servers may begin when its first parameters have
                come; whatever uses one that has not waits for it. Default: if the first
                steps show that all uses can be seen. False for scripts that read
                parameters by other means than functions and modules of PyTorch.

        Raises ValueError naming a parameter that cannot be trained, and two that lie in the
        same memory without being one parameter.
        """
        if self._tables is not None:
            raise RuntimeError(
                "job.model() was called before; put several models into one torch.nn.ModuleDict"
            )
        _device.check_model(module, self.device)
        self._synchronise_batch_norm(module)
        self._tables = Tables(module, _device.CPU if self._world.through_host else self.device)
        self._values = Values(self._tables)
        self._arrivals = Arrivals(
            self._tables, self._world.wait_for, overlap if self._world.sends else False
        )
        unwritable = self._tables.unwritable()
        if unwritable and self.rank == 0:
            self._warn(
                f"job.model(): {'; '.join(unwritable[:3])}: the files of the trained model will not have "
                "it, so keep it beside them, or give register_buffer(persistent=False)"
            )
        return module

    def _synchronise_batch_norm(self, module: torch.nn.Module) -> None:
        together = self.world_size > 1
        names = _sync_batch_norm.take_over(module, self._exchange if together else None)
        if names and together and not self._in_step_together:
            raise ValueError(
                f"job.model(): '{names[0]}' is a SyncBatchNorm, which waits for the batches of all workers, and in "
                f"{self.mode} each is at another step; use --mode bsp or allreduce, or BatchNorm, whose means are "
                "each worker's, or GroupNorm, which needs no others"
            )

    @property
    def _in_step_together(self) -> bool:
        """Whether all workers do the same steps at the same time, whatever becomes of the job."""
        return self.mode in ("bsp", "allreduce")

    def _exchange(self, vector: torch.Tensor) -> List[torch.Tensor]:
        """Of a layer, in forward and in backward, which all workers do in one order."""
        brought = self._gather("SyncBatchNorm", f"SyncBatchNorm({vector.numel()})", vector, any_thread=True)
        return [value for _, value in brought]

    def optimizer(
        self,
        source: Source,
        rule: Optional[Rule] = None,
        overlap: Optional[bool] = None,
        scale_lr: Optional[str] = None,
        steps_per_batch: int = 1,
    ) -> Optimizer:
        """The optimizer for the script's loop. The arithmetic is done by the servers.

        A script may have several, over disjoint parameters. Then each ``step()`` of one is a
        step of the job, in which the parameters of the others stay as they are: values,
        moments and counts. It returns with the parameters after it, of all workers in BSP.

        Args:
            source: an optimizer of ``torch.optim`` (all but LBFGS, SparseAdam, ASGD and Rprop), which
                is then not used any more; or the module, its parameters, or parameter
                groups, which may override options of the rule.
            rule: with the latter, for example ``slackline.Adam(lr=0.001)``; default: the
                config's ``optimizer``.
            overlap: whether gradients leave while backward still runs. Default: if the
                first steps show that each gradient is complete then. False for scripts
                that sometimes change gradients between backward and ``step()``, or call
                backward several times.
            scale_lr: what learning rates are multiplied with at the start: "linear": the
                number of workers; "sqrt": its square root; None: nothing. A scheduler that
                has rates of its own, such as OneCycleLR, does not know of it.
            steps_per_batch: how often its ``step()`` is called for one batch, at most. Those of
                all optimizers together are the job's steps for a batch; those that the script
                leaves out change nothing.

        Raises ValueError for what servers cannot do, by name; for a parameter that
        no group has; and if both the config and the script have an optimizer.
        """
        if self._tables is None or self._arrivals is None:
            raise RuntimeError("job.optimizer(): call job.model() first")
        if self._loader is not None:
            raise RuntimeError("job.optimizer(): the job has begun; call it before the first batch")
        if steps_per_batch < 1:
            raise ValueError(f"job.optimizer(): steps_per_batch is {steps_per_batch}; at least 1 is required")
        trained = self._names_of_parameters()
        text = self._world.optimizer_text
        of_config = _rules.rule_of_text(text) if text else None
        factors = {None: 1.0, "linear": float(self.world_size), "sqrt": self.world_size**0.5}
        if scale_lr not in factors:
            raise ValueError(
                f"job.optimizer(): scale_lr is {scale_lr!r}; 'linear', 'sqrt' or None is required"
            )
        made = make_optimizer(
            self, source, rule, of_config, trained, self._optimizers.parameters, factors[scale_lr]
        )
        self._optimizers.each.append(made)
        if scale_lr is not None:
            self._scaled = f"; learning rates x {factors[scale_lr]:.4g}, as scale_lr='{scale_lr}' says"
        self._steps_per_batch += steps_per_batch
        if self._overlap is None:
            self._overlap = Overlap(
                self._tables,
                self._hand_over,
                self._arrivals.gradient_made,
                overlap if self._world.sends else False,
            )
        if len(self._optimizers.each) > 1:  # A backward makes gradients of others', too.
            self._overlap.never("with several optimizers")
        if self._steps_per_batch > 1:  # A backward may be of a forward before the last step.
            self._arrivals.never("with several steps for a batch")
        return made

    # ---- Data ----------------------------------------------------------------

    def loader(
        self,
        dataset: Any,
        batch_size: Optional[int] = None,
        *,
        global_batch_size: Optional[int] = None,
        shuffle: bool = True,
        sampler: Optional[Iterable[int]] = None,
        batch_sampler: Optional[Iterable[List[int]]] = None,
        steps: Optional[int] = None,
        accumulate: int = 1,
        elastic: bool = False,
        **loader_options: Any,
    ) -> Loader:
        """This worker's part of a data set, in the order of the job's steps.

        Args:
            dataset: a Dataset or an IterableDataset of PyTorch. Of the latter every
                worker sees all, so let it take a part by ``job.rank``.
            batch_size: examples of one worker in a batch, 1 by default. A step of the job
                has ``world_size`` times ``accumulate`` times as many.
            global_batch_size: instead, the examples of all workers in a step, which have to
                be a multiple of ``world_size`` times ``accumulate``.
            shuffle: another order in each epoch, from ``job.seed``; the few examples
                that make no whole step are left out, others each time.
            sampler, batch_sampler: one's own order, of the whole data set. Every worker
                draws it with the same seed and takes its part.
            steps: steps of an epoch, if that is less than the data have. Required for
                an IterableDataset.
            accumulate: batches whose gradients add up to one step.
            elastic: workers take the next examples when they are ready for them. A fast
                one does more steps than others, and what a lost one had goes to those
                who are left: every example of an epoch is trained on once. The batches
                of an epoch's last step may be smaller, and runs are not the same twice.
                Not with ``batch_sampler``, ``steps`` and an IterableDataset.
            loader_options: what else torch.utils.data.DataLoader takes (num_workers,
                pin_memory, collate_fn, ...). With ``elastic`` the ``num_workers`` processes
                load each batch together when its step begins, and nothing before, and
                collate_fn runs in this process.

        Raises ValueError if the data do not make one step, and naming what does not go
        with ``elastic``.
        """
        return Loader(
            self,
            dataset,
            self._batch_size(batch_size, global_batch_size, accumulate),
            shuffle,
            sampler,
            batch_sampler,
            steps,
            accumulate,
            elastic,
            loader_options,
        )

    def _batch_size(self, of_one: Optional[int], of_all: Optional[int], accumulate: int) -> int:
        if of_all is None:
            return 1 if of_one is None else of_one
        if of_one is not None:
            raise ValueError("job.loader(): give batch_size or global_batch_size, not both")
        share = self.world_size * max(accumulate, 1)
        if of_all < 1 or of_all % share != 0:
            times = f" with accumulate={accumulate}" if accumulate > 1 else ""
            raise ValueError(
                f"job.loader(): global_batch_size is {of_all}, which {self.world_size} workers{times} "
                f"cannot share equally; a multiple of {share} is required, for example "
                f"{max(1, round(of_all / share)) * share}"
            )
        return of_all // share

    def epochs(self, epochs: Optional[float] = None) -> Iterator[int]:
        """Yields 0, 1, ... for each epoch of the job, and ends the job after the last.

        The config's ``train.epochs`` (and ``--epochs``, ``max_steps``) count more than
        the argument; without any it is one epoch.
        """
        if self._in_epochs:
            raise RuntimeError(
                "job.epochs() is for one loop, and ends with the job; give it the epochs of all loops"
            )
        self._in_epochs = True
        self._epochs = epochs
        if self._loader is not None and self._length_by_default and epochs not in (None, 1):
            raise RuntimeError(
                f"job.epochs({epochs}): the job has begun with the first batch, which was taken before, and has "
                "one epoch. For a look at a batch, take it from a torch.utils.data.DataLoader, or in the loop"
            )
        # A worker that comes later has examples of a later epoch.
        epoch = self._world.begins_in_epoch() if self._loader is None else 0
        self._epoch_seen = epoch
        while not self._over:
            done = self._steps_done
            self._passes = 0
            self._epoch_counted = epoch
            yield epoch
            if self._loader is None or (self._steps_done == done and not self._over):
                raise RuntimeError(
                    "job.epochs(): no step was done in this epoch; iterate a job.loader() in it"
                )
            self._check_whole_epoch()
            self._look_ahead()
            if self._ahead is not None:
                following = self._epoch_of(self._ahead)
                if self._loader.elastic is not None and following == epoch:
                    raise RuntimeError(
                        f"the loop over batches was left before the end of epoch {epoch}. {self._fewer()}"
                    )
                epoch = following
        self._epochs_ended = True
        self.finish()

    def keep(self, **objects: Any) -> None:
        """Has objects of the script go into checkpoints, and come back in a job that goes on.

            job.keep(scheduler=scheduler, ema=ema)

        Each has ``state_dict()`` and ``load_state_dict()``: schedulers of ``torch.optim``, an
        averaged model, a GradScaler, one's own; or it is a generator of random numbers of
        PyTorch or NumPy. They are asked when the script asks for a
        batch, so between two steps, by this worker for itself. A job that goes on from a
        checkpoint (``slackline run --resume``) gives each its state back, by its name, when
        the first batch is asked for. Call it before that, on all workers.

        Kept in any case are the model's buffers, such as the running means of BatchNorm, the
        learning rates of the optimizer's groups, and the random numbers of PyTorch, NumPy and
        Python. Alone, and without checkpoints in the config, it has no effect.

        Raises ValueError naming what cannot be kept, and RuntimeError after the first batch.
        """
        if self._loader is not None:
            raise RuntimeError("job.keep(): the job has begun; call it before the first batch")
        self._kept.add(objects)

    # ---- What is measured ----------------------------------------------------

    def log(self, **values: Union[float, torch.Tensor]) -> None:
        """Figures of the step, for the records of the run; ``loss`` is the training loss.

        They appear in ``slackline top`` and ``status`` (the loss) and in
        ``metrics.jsonl`` as means over some steps.
        """
        if self._loader is None:
            raise RuntimeError("job.log(): nothing was trained yet")
        for name, value in values.items():
            self._world.log(name, _number(name, value))

    def log_image(self, name: str, image: Any) -> None:
        """Writes an image to ``images/NAME/STEP.png`` in the folder of the run.

        The step is ``job.steps``; a second image of that name and step replaces the first.
        Whoever calls it writes, so mostly it is called ``if job.rank == 0``.
        ``slackline report`` puts the images of a run into its TensorBoard files.

        Args:
            name: letters, digits, ``_``, ``-`` and ``.``; at most 100 names of one worker.
            image: a tensor or an array, height x width, or channels x height x width with 1
                (grey), 3 (RGB) or 4 (RGB and alpha) channels; float in [0, 1], or uint8. At
                most 2048 x 2048.

        Of one name 1000 images are written; what comes then is left out, which is said
        once. A script alone writes to the ``out`` of ``slackline.join()``; without one
        nothing is written, which is said once.

        Raises ValueError for a name or an image that is not so.
        """
        self._images.write(name, self._steps_done, image)

    def evaluate(self, function: Callable[[torch.nn.Module], Scores]) -> None:
        """Says how the model is evaluated, and does it if the job asks for it.

        One worker is asked, at the end of each epoch unless the config's
        ``train.eval_every_epochs`` says otherwise; there ``function`` runs in another
        thread, with a copy of the module in eval mode and without autograd, while the
        training goes on. On all others this returns at once. After the last step it
        runs on the trained model.

        ``function`` returns the accuracy, in [0, 1], or a dict of figures, in which
        ``loss`` and ``accuracy`` are those of the reports and of ``train.stop``.

        The copy is made by ``copy.deepcopy()``, or, where that cannot copy something, attribute
        by attribute; then what cannot be copied is shared with the model, which is said once.
        """
        if not callable(function):
            raise TypeError(
                f"job.evaluate(): a {type(function).__name__} is not a function; give the function and "
                "not what it returns: job.evaluate(accuracy), or job.evaluate(lambda net: accuracy(net, data))"
            )
        self._raise_evaluation_error()
        self._evaluate = function
        if self._concluding:
            self._evaluate_final()
        elif self._asked is not None:
            task, self._asked = self._asked, None
            self._start_evaluation(task)

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the model to a safetensors file, on the worker that concludes the job.

        After the last step that is the trained model. ``slackline.load(path)`` reads it
        for ``load_state_dict()`` of the plain module; so do other libraries. The folder
        of the run has ``model.safetensors`` in any case. Before the last step, and in a
        job that was stopped before it, worker 0 writes the parameters as they are there;
        if a step had begun over servers, some may be those of the step before.
        """
        if self._tables is None:
            raise RuntimeError("job.save(): call job.model() first")
        trained = False
        if self._loader is not None:
            at_end = self._is_over()
            # Else a stop rule has ended it. Of an elastic job nobody knows before; there
            # worker 0 is the one that concludes, if it lives.
            trained = self._steps_done >= self._work.steps_total and not self._loader.elastic
            if trained or at_end:
                self.finish()
        if not self._was_chief and (trained or self.rank != 0):
            return
        state = {
            name: tensor
            for name, tensor in self._tables.module.state_dict().items()
            if isinstance(tensor, torch.Tensor) and not _files.why_not(tensor)
        }
        _files.save(state, path, {"job": self._world.job})

    # ---- Collectives ---------------------------------------------------------

    def all_reduce(self, x: Union[float, torch.Tensor], op: str = "sum") -> Any:
        """Sum, "mean", "min", "max" or "product" of what all workers give, on all of them.

        ``x`` is a tensor, of the same type and shape on all workers, or a number. The
        result is a new tensor of that type, or a number. It is computed in the order of
        ranks, so that all have the same bits.

        This and the other collectives are called by all workers at the same place of the
        script: before the first batch, in a step, between two, or after the last one
        within ``epochs()``. Each waits until all workers have come. One that is gone is
        left out; one that joins later gets the results from where it begins. Each worker
        gives at most 1 MiB, and less in jobs of more than 64 workers.

        Raises ValueError, on all workers and naming them by rank, if they call different
        things, and TimeoutError naming who has not come within the config's
        ``limits.wait_timeout_ms`` (before the first batch ``start_timeout_ms``).
        """
        described = _collectives.describe_reduction(x, op)
        values = [v for _, v in self._gather("job.all_reduce()", described, x)]
        result = _collectives.reduce(values, op)
        return result.to(x.device) if isinstance(x, torch.Tensor) else result

    def all_gather(self, x: _collectives.Value) -> List[Any]:
        """What all workers give, in the order of ranks, on all of them.

        ``x`` is a tensor (of any shape on each worker), a number, a string, None, or a
        list or dict of numbers, strings and the like. The list has one item for each
        worker that took part: as many as ``world_size``, if none is gone. See
        ``all_reduce()`` for where it may be called.
        """
        values = [v for _, v in self._gather("job.all_gather()", "all_gather()", x)]
        return [v.to(x.device) if _are_tensors(x, v) else v for v in values]

    def broadcast(self, x: _collectives.Value, src: int = 0) -> Any:
        """What worker ``src`` gives, on all workers; the others may give None.

        ``x`` is as for ``all_gather()``. Raises RuntimeError if that worker is gone. See
        ``all_reduce()`` for where it may be called.
        """
        if not 0 <= src < self.world_size:
            raise ValueError(f"job.broadcast(): src is {src}; 0 to {self.world_size - 1} is required")
        call = "job.broadcast()"
        mine = x if self.rank == src else None
        values = dict(self._gather(call, f"broadcast(src={src})", mine))
        if src not in values:
            raise RuntimeError(f"{call}: worker {src} is gone, and nobody else has its value")
        value = values[src]
        return value.to(x.device) if _are_tensors(x, value) else value

    def barrier(self) -> None:
        """Waits until all workers have come here. See ``all_reduce()``."""
        self._gather("job.barrier()", "barrier()", None)

    def _gather(self, call: str, described: str, value: Any, any_thread: bool = False) -> Any:
        # The backward of a GPU runs in a thread of PyTorch, for which the script's waits.
        own_thread = any_thread or threading.get_ident() == self._thread
        if not own_thread or os.getpid() != self._pid:
            raise RuntimeError(f"{call}: it is called by the script's main thread, in its own process")
        if self._loader is not None and self._loader.elastic:
            raise RuntimeError(
                f"{call}: with elastic=True workers do different steps, and would wait for each other "
                "for ever; call it before the first batch"
            )
        stopped = self._over and self._steps_done < self._work.steps_total
        if self._over and not stopped:
            raise RuntimeError(
                f"{call}: the job is over, and the other workers may be gone; call it before "
                "job.epochs() ends, for example after the last batch of each epoch"
            )
        data = _collectives.pack(call, described, value)
        if len(data) > self._world.gather_bytes_max:
            raise ValueError(
                f"{call}: {len(data)} bytes; {self._world.gather_bytes_max} of each worker are allowed. "
                "Give less, or write a file"
            )
        place = self._place()
        number = self._gathered_at[1] if place == self._gathered_at[0] else 0
        brought = None if stopped else self._world.gather(place, number, data)
        self._gathered_at = (place, number + 1)
        if brought is None:
            print(
                f"slackline: {call}: the job has ended before the last step of this worker; the result is "
                "this worker's alone",
                file=sys.stderr,
                flush=True,
            )
            brought = [(self.rank, data)]
        return _collectives.unpack(call, described, brought)

    def _place(self) -> int:
        """Where the script is, in terms that are the same for all workers."""
        if self._loader is None:
            return 0
        if self._step is not None:
            return 2 * self._step + 1
        done = self._steps_done
        per_epoch = self._steps_per_epoch
        end = -(-done // per_epoch) * per_epoch
        if self._ahead is not None and self._ahead >= end:
            # The end of an epoch, whichever of its last steps this worker has done.
            return 2 * end
        return 2 * done

    # ---- The end -------------------------------------------------------------

    def finish(self) -> None:
        """Waits for the end of the job, after the last step. Called by ``epochs()``.

        Raises RuntimeError before the last step.
        """
        if self._loader is None or self._finished:
            return
        if not self._is_over():
            raise RuntimeError(
                f"job.finish(): {self._steps_done} of {self._work.steps_total} steps are done"
            )
        self._wait_for_evaluation()
        self._raise_evaluation_error()
        while not self._finished:
            if self._concluding:
                if self._final_scores is None and self._evaluate is not None:
                    self._evaluate_final()
                assert self._tables is not None
                self._tables.set_companions(self._tables.companions())
                self._world.conclude({}, self._final_scores or {})
                self._concluding = False
            self._take_task()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.finish()
        else:
            self._on_error(kind, error, trace)

    # ---- Of the loader -------------------------------------------------------

    _finished = False
    _was_chief = False
    _epochs_ended = False
    _pass: Optional[object] = None  # The loop over batches that has begun last.
    _length_by_default = False  # Neither the config nor the script says how long the job is.
    _end_said = False
    _zeros_said = False
    _exit = ""  # How the script has called sys.exit(), for people.
    _said_last = ""  # An error of the script after the end.

    def _begin_epoch(self, loader: Loader, loader_pass: object) -> Optional[int]:
        """The number of the epoch's first batch; none when the job has no more."""
        if not self._optimizers.each:
            raise RuntimeError("job.loader(): call job.model() and job.optimizer() first")
        self._end_batch()
        if self._step is not None and not self._at_begin(self._step):
            raise RuntimeError(
                f"step {self._step}: its batch was taken, and the loop was left before "
                f"optimizer.step(). {self._fewer()}"
            )
        self._check_pass(loader)
        if self._loader is None:
            self._open(loader)
        elif (loader.elastic is None) != (self._loader.elastic is None):
            raise ValueError("job.loader(): elastic is the same for all loaders of a job")
        elif (
            loader.elastic is not None
            and self._loader.elastic is not None
            and loader.elastic.examples != self._loader.elastic.examples
        ):
            raise ValueError(
                f"job.loader(): this one has {loader.elastic.examples} examples in an epoch, the one "
                f"before had {self._loader.elastic.examples}; the job's epochs have equal length"
            )
        elif loader.steps_per_epoch != self._loader.steps_per_epoch:
            raise ValueError(
                f"job.loader(): this one has {loader.steps_per_epoch} steps in an epoch, the one "
                f"before had {self._loader.steps_per_epoch}; the job's epochs have equal length"
                f"{_for_other_data(loader, self._loader)}"
            )
        self._passes += 1
        self._pass = loader_pass
        if self._step is not None:  # A look at the first batch, which comes again.
            return self._begin_batch(self._step)
        if self._ahead is not None:
            step, self._ahead = self._ahead, None
            self._check_values()  # The script has done something since the step was taken.
            return self._begin_batch(step)
        if self._over:
            return None
        step = self._next_step()
        if step is not None and self._in_epochs and self._epoch_of(step) != self._epoch_counted:
            self._warn(
                f"the epoch has changed while this worker came: its first loop over batches has those of epoch "
                f"{self._epoch_of(step)}, and counts as epoch {self._epoch_counted}"
            )
        return self._begin_batch(step)

    def _begin_batch(self, step: Optional[int]) -> Optional[int]:
        """The batch of the step, which is mostly its first one, is handed out."""
        self._batch = None if step is None else step // self._steps_per_batch
        self._calls = 0
        self._begin_step(step)
        return self._batch

    def _end_batch(self, asked: bool = False) -> None:
        """The script is done with its batch: steps that it has left out change nothing.

        ``asked``: for the next one, so that it may have left out all. Gradients stay, and add up.
        """
        while self._batch is not None and self._step is not None and (asked or self._calls > 0):
            self._calls = self._step - self._batch * self._steps_per_batch + 1
            self._do_step(None)
            self._go_on_in_batch()

    def _go_on_in_batch(self) -> None:
        """Takes the next step, if it is of the batch at hand."""
        assert self._batch is not None
        if self._calls >= self._steps_per_batch or self._ahead is not None or self._over:
            return
        step = self._next_step()
        if step is None:
            return
        if step // self._steps_per_batch == self._batch and step >= self._due():
            self._begin_step(step)
            self._hands_out()
        else:  # The last one is lost and comes again, or others have done these.
            self._set_ahead(step)

    def _due(self) -> int:
        """The step that the next call of step() is."""
        assert self._batch is not None
        return self._batch * self._steps_per_batch + self._calls

    def _after_batch(self, batch: int) -> Optional[int]:
        """The number of the next one. The one at hand has to be finished."""
        reached = self._overlap is not None and self._overlap.any()
        self._end_batch(asked=True)
        step = batch * self._steps_per_batch
        self._reached = self._reached or reached
        epoch = self._epoch_of(step)
        if self._steps_done >= self._work.steps_total and not self._loader.elastic:
            # What follows is the end of the job. The script may have something to do
            # before it, together with the others, and with what it has trained.
            self._check_stepped()
            if not self._keeps_values and not self._over:
                self._fetch_state()
            return None
        following, self._ahead = self._ahead, None
        if following is None:
            following = self._next_step()
        else:
            self._check_values()
        if following is None:
            return None
        assert self._loader is not None
        if self._epoch_of(following) != epoch:
            self._check_stepped()
            self._set_ahead(following)
            return None
        return self._begin_batch(following)

    def _check_stepped(self) -> None:
        """At the end of an epoch. Raises RuntimeError if the script has forgotten step()."""
        if self._stepped:
            return
        backward = "" if self._reached else "; backward() has not reached any parameter of job.model()"
        raise RuntimeError(
            f"step {self._steps_done}: an epoch has ended without any optimizer.step(){backward}. Call step() of "
            "what job.optimizer() returned; to evaluate, take the batches of a torch.utils.data.DataLoader"
        )

    def _drawn(self, order: Iterable[Any], most: Optional[int] = None) -> Drawn:
        """What a sampler of the script draws, at most; of one that is given in each epoch always the same."""
        drawn = self._orders.pop(id(order), None) or Drawn(order, self.seed, most)
        self._orders[id(order)] = drawn
        while len(self._orders) > _ORDERS_MAX:  # A script may make one for each epoch.
            del self._orders[next(iter(self._orders))]
        return drawn

    def _at_begin(self, step: int) -> bool:
        """Whether a loop over batches begins with the step."""
        assert self._loader is not None
        return self._loader.elastic is None and step % self._steps_per_epoch == 0

    def _fewer(self) -> str:
        assert self._loader is not None
        if self._loader.elastic is not None:
            return "A loop over batches goes to its end; give sampler= for fewer examples"
        return "A loop over batches goes to its end; for shorter epochs give job.loader(steps=N)"

    def _check_whole_epoch(self) -> None:
        """Raises RuntimeError if the script's loop has left steps of its epoch to nobody."""
        assert self._loader is not None
        self._end_batch()
        per_epoch = self._steps_per_epoch
        at_end = self._steps_done % per_epoch == 0 or self._steps_done >= self._work.steps_total
        if self._loader.elastic is not None or self._over or at_end or self._ahead is not None:
            return
        raise RuntimeError(
            f"the loop over batches was left after {self._steps_done % per_epoch} of the {per_epoch} steps "
            f"of its epoch, and the job's epochs all have as many. {self._fewer()}"
        )

    def _check_pass(self, loader: Loader) -> None:
        """Raises RuntimeError if the script goes over the batches more often than the job does."""
        if self._loader is None:
            return
        self._check_whole_epoch()
        again = self._in_epochs and self._passes > 0 and self._step is None and not self._loader.elastic
        if again and not self._over:
            raise RuntimeError(
                "job.loader(): a second loop over batches in one round of job.epochs(). Each is an epoch "
                "of the job, so job.epochs() counts one for each: give it the number of loops, and have "
                f"one in each round{_for_other_data(loader, self._loader)}"
            )
        if self._epochs_ended:
            raise RuntimeError(
                "job.loader(): the job is over, and has no batches any more; to evaluate, take those of a "
                "torch.utils.data.DataLoader"
            )
        done = self._over or (not loader.elastic and self._steps_done >= self._work.steps_total)
        if done and not self._stopped_early() and not self._in_epochs:
            if self._length_by_default:
                raise RuntimeError(
                    "job.loader(): the job has one epoch, which is done. For more write "
                    "`for epoch in job.epochs(N):` around the loop over batches, or give train.epochs in "
                    "the config"
                )
            if not self._end_said:
                self._warn("the epochs that the config gives are done; a loop over batches has none any more")
            self._end_said = True

    def _stopped_early(self) -> bool:
        return self._over and self._steps_done < self._work.steps_total

    def _epoch_of(self, step: int) -> int:
        """The epoch of a step that was taken last."""
        assert self._loader is not None
        if not self._loader.elastic:
            return step // self._steps_per_epoch
        # A lost worker's examples may be of an epoch that is over here.
        self._epoch_seen = max(self._epoch_seen, self._examples[0])
        return self._epoch_seen

    def _is_over(self) -> bool:
        """Whether the job has no more steps for this worker. May learn it now."""
        assert self._loader is not None
        self._end_batch()
        if self._loader.elastic or self._steps_done >= self._work.steps_total:
            self._look_ahead()
        return self._over

    def _look_ahead(self) -> None:
        """Learns what follows after a loop that took its last batch without asking for more."""
        if self._step is None and self._ahead is None and not self._over:
            self._set_ahead(self._next_step())

    def _set_ahead(self, step: Optional[int]) -> None:
        """The next step, before which the script does something else."""
        assert self._arrivals is not None
        self._arrivals.wait_for_all()
        self._ahead = step
        if step is not None:
            self._note_values(step, whole=True)

    def _check_in_step(self, batch: int) -> None:
        if self._step is None or self._calls > 0:
            raise RuntimeError(
                f"step {batch * self._steps_per_batch}: optimizer.step() was called before the last of the "
                f"accumulate={self._loader.accumulate} batches"  # type: ignore[union-attr]
            )

    def _begin_step(self, step: Optional[int]) -> Optional[int]:
        if step is None:
            self._step = None
            self._gathered_at = (0, 0)
            return None
        assert self._tables is not None and self._overlap is not None
        self._keep_now()  # The script is done with all before this step.
        self._step = step
        self._gathered_at = (0, 0)  # One that comes again has its collectives again.
        self._steps_done = max(self._steps_done, step)
        if _values.looks_at_all(step) or self._at_begin(step):
            self._tables.check_module()
        if self._by_all_reduce and self._looks_at_replicas(step):
            self._compare_replicas()
        self._note_values(step)
        self._overlap.begin_step()
        return step

    def _note_values(self, step: int, whole: bool = False) -> None:
        """Remembers what the parameters of a step are, to see whether the script changes them.

        ``whole``: the script may do something to them that it does in few places.
        """
        assert self._tables is not None and self._values is not None and self._arrivals is not None
        if self._keeps_values:
            return
        if _values.looks_at_all(step):
            self._arrivals.wait_for_all()
        if not self._arrivals.missing:
            self._values.note(step, whole)

    @property
    def _begins_by_all_reduce(self) -> bool:
        return self.mode.startswith(("allreduce", "auto"))

    @property
    def _keeps_values(self) -> bool:
        """Whether the next step begins with what the module has after this one."""
        return not self._world.sends or self._by_all_reduce

    def _check_values(self) -> None:
        """The script may have changed parameters. Raises RuntimeError naming one, if they are the servers'."""
        assert self._tables is not None and self._values is not None
        if self._keeps_values:
            self._tables.take_over()
            return
        # What PyTorch counts is seen in optimizer.step(), if one follows.
        if self._steps_done >= self._work.steps_total:
            self._tables.check_unchanged()
        changed = self._values.changed()
        self._values.forget()
        if changed is not None:
            self._tables.refuse_change(changed)

    def _looks_at_replicas(self, step: int) -> bool:
        assert self._loader is not None
        if self.world_size == 1 or self._loader.elastic is not None:
            return False
        epoch, place = divmod(step, self._steps_per_epoch)
        # Of many short epochs not each begins with a look, which takes part of a millisecond.
        every = -(-_STEPS_BETWEEN_LOOKS // (4 * self._steps_per_epoch))
        of_epoch = place == 0 and (epoch < _FIRST_EPOCHS or epoch % every == 0)
        return step > 0 and (step < _FIRST_LOOKS or step % _STEPS_BETWEEN_LOOKS == 0 or of_epoch)

    def _compare_replicas(self) -> None:
        """By all-reduce: raises RuntimeError if parameters differ, and takes the first worker's rates and momenta."""
        assert self._tables is not None
        self._agreed_at = self._steps_done
        rates = self._optimizers.options_now()
        mine = {"values": _values.totals(self._tables), "rates": rates}
        brought = self._gather("job.loader()", "a look at the replicas", mine)
        _agreement.check_replicas(self._steps_done, [(rank, of["values"]) for rank, of in brought])
        first = _agreement.first_rates([(rank, of["rates"]) for rank, of in brought], rates)
        if first is None:
            return
        self._warn(
            f"step {self._steps_done}: {_options_text(rates, first[1], first[0])}, whose rate counts: "
            "let the scheduler see the same on all workers, for example "
            "scheduler.step(job.all_reduce(loss, 'mean'))"
        )
        self._optimizers.set_options(first[1])

    def _compare_skipped(self, optimizer: Optional[Optimizer], skipped: List[int]) -> None:
        """By all-reduce: raises RuntimeError if workers do not step the same parameters."""
        assert self._tables is not None and self._loader is not None
        if self.world_size == 1 or self._loader.elastic is not None:
            return
        kept = set(skipped)
        stepping = [t.name for index, t in enumerate(self._tables.tables) if index not in kept]
        said = _agreement.some_names(stepping) or "nothing: it does not call optimizer.step(), or skips it"
        brought = self._gather("optimizer.step()", "a look at what steps", said)
        _agreement.check_steps(self._step or 0, brought)

    def _loaded(self, seconds: float) -> None:
        """So much of the open step's time went into getting its batch."""
        self._world.loaded(seconds)

    def _hands_out(self) -> None:
        """The script begins with a step: its data set, or with the first batch itself."""
        assert self._arrivals is not None
        self._arrivals.watch()

    def _left(self, loader_pass: object) -> None:
        """A loop over batches of the script ends, however that comes."""
        if self._arrivals is not None and loader_pass is self._pass:
            self._arrivals.leave()

    def _next_step(self) -> Optional[int]:
        while True:
            task = self._take_task()
            if task is None:
                return None
            if isinstance(task, _worlds.EVALUATION):
                if self._evaluate is None:
                    self._asked = task
                else:
                    self._start_evaluation(task)
            elif not isinstance(task, _worlds.CONCLUSION):
                if task.examples is not None:
                    self._examples = task.examples
                return int(task.clock)

    def _take_task(self) -> Any:
        self._raise_evaluation_error()
        assert self._tables is not None and self._arrivals is not None
        if not self._over:
            self._check_values()
            self._compare_last()
        task = self._world.next()
        while isinstance(task, (_worlds.KEEP, _worlds.RESTORE)):
            if isinstance(task, _worlds.RESTORE):
                self._kept.restore(task.state, self._tables.module, self._optimizers, self._warn)
            else:
                self._keep = task.cut
                if task.last:
                    self._keep_now()
            task = self._world.next()
        if task is None:
            self._over = self._finished = True
        elif isinstance(task, _worlds.CONCLUSION):
            self._tables.refresh()
            self._last_state = self._fetch_state()
            self._over = self._concluding = self._was_chief = True
            return None
        elif not isinstance(task, _worlds.EVALUATION):
            # Over servers the first step is by all-reduce, too, to bring worker 0's values to all.
            kept = self._keeps_values
            self._summed = task.by_all_reduce
            self._by_all_reduce = task.by_all_reduce and (task.clock > 0 or self._begins_by_all_reduce)
            if kept and not self._keeps_values:
                self._tables.count_anew()
            if not task.by_table:
                self._tables.refresh()
            self._arrivals.take(task.by_table)
        return task

    def _compare_last(self) -> None:
        """After the last step by all-reduce: what follows is the trained model."""
        assert self._loader is not None
        at_end = not self._loader.elastic and self._steps_done >= self._work.steps_total
        if self._by_all_reduce and self.world_size > 1 and at_end and self._agreed_at < self._steps_done:
            self._compare_replicas()

    def _keep_now(self) -> None:
        """A checkpoint that cannot have the script's state is given up; the training goes on."""
        cut, self._keep = self._keep, None
        if cut is None:
            return
        assert self._tables is not None
        try:
            self._world.kept(cut, self._kept.state(self._tables.module, self._optimizers, self._warn), "")
        except Exception as error:
            self._world.kept(cut, None, _cut(f"{type(error).__name__}: {error}"))

    def _warn(self, text: str) -> None:
        print(f"slackline: warning: worker {self.rank}: {text}", file=sys.stderr, flush=True)

    def _open(self, loader: Loader) -> None:
        assert self._tables is not None and self._arrivals is not None
        check_all_trained(self._names_of_parameters(), self._optimizers)
        group_of = {
            parameter: index
            for index, group in enumerate(self._optimizers.param_groups)
            for parameter in group["params"]
        }
        self._groups = [group_of[table.parameter] for table in self._tables.tables]
        owner = [one for one in self._optimizers.each for _ in one.param_groups]
        self._owner = [owner[group] for group in self._groups]
        self._never_had = set(range(len(self._tables)))  # A gradient.
        world = self._world
        epochs = world.epochs if world.epochs is not None else self._epochs
        if epochs is not None and not (epochs > 0 and math.isfinite(epochs)):
            raise ValueError(f"job.epochs(): {epochs} epochs; a number above 0 is required")
        batch = loader.batch_size * loader.accumulate
        times = self._steps_per_batch
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
                epochs, world.max_steps, count, batch, self.world_size
            )
            loader.elastic.check(examples)
            elastic = (count, examples)
        else:
            most = None if world.max_steps is None else world.max_steps // times
            batches, of_epoch = _core.length(epochs, most, loader.steps_per_epoch)
            total, per_epoch = batches * times, of_epoch * times
        described = f"{loader.description}, {batch * self.world_size} in a step"
        data_hash = loader.data_hash if self.world_size > 1 else ""
        by_table = self._arrivals.possible
        self._work = _worlds.Work(
            total, per_epoch, batch, described, data_hash, elastic, by_table
        )
        self._length_by_default = epochs is None and world.max_steps is None
        if self.world_size > 1:
            self._agree_at_start(loader)
        self._tables.check_module()
        self._loader = loader
        self._steps_per_epoch = loader.steps_per_epoch * times
        self._tables.fetch()
        rules = self._rules()
        if self._world.through_host:
            where = f"; {self.device} through copies on the host, because {self._world.through_host}"
        else:
            where = "" if self.device == _device.CPU else f"; on {self.device}"
        if self.rank == 0:
            print(
                f"slackline: {len(self._tables)} tables, "
                f"{sum(t.values.numel() for t in self._tables.tables)} parameters; "
                f"{'about ' if elastic else ''}{total} steps, {per_epoch} in an epoch; "
                f"batch {batch} x {self.world_size} workers = "
                f"{batch * self.world_size}{f', {times} steps each' if times > 1 else ''}{self._scaled}{where}",
                file=sys.stderr,
                flush=True,
            )
        world.open(self._tables, rules, self._work)
        begins_with = self._first_state()
        if begins_with is not None:
            world.begin_with(begins_with)
        if self._seeded:  # Masks of dropout and the like differ between workers.
            _seed(world.seed * 7919 + 1 + self.rank)

    def _agree_at_start(self, loader: Loader) -> None:
        """What is not trained becomes the first worker's. Raises ValueError for what cannot."""
        assert self._tables is not None
        call, described = "job.loader()", "the first batch"
        tensors = _agreement.untrained(
            self._tables.module, [table.parameter for table in self._tables.tables]
        )
        described_tensors = _agreement.describe(tensors, self._world.gather_bytes_max // 2)
        mine = {"untrained": described_tensors, "order": loader.order_digest(0)}
        brought = self._gather(call, described, mine)
        first = brought[0][0]
        _agreement.check_order([(rank, theirs["order"]) for rank, theirs in brought])
        names = _agreement.differing([(rank, theirs["untrained"]) for rank, theirs in brought])
        if not names:
            return
        _agreement.check_sendable(names, tensors)
        parts = _agreement.pieces(names, tensors)
        sent = [
            dict(self._gather(call, described, part if self.rank == first else None))[first]
            for part in parts
        ]
        if self.rank != first:
            _agreement.take(names, tensors, torch.cat(sent))
            self._warn(
                f"{_agreement.some_names(names)}, which are not trained, begin with the values of worker {first}"
            )

    def _compare_order(self, epoch: int, digest: str) -> None:
        """Raises ValueError if a sampler has drawn other orders on other workers.

        Compared at the start in all modes, and after that where workers do the same steps at
        the same time anyhow.
        """
        if epoch == 0 or self.world_size == 1 or not self._in_step_together:
            return
        brought = self._gather("job.loader()", "the order of an epoch", digest)
        _agreement.check_order(brought)

    def _rules(self) -> List[str]:
        rules = self._optimizers.rules
        return [rules[group].text() for group in self._groups]

    # ---- Of the optimizer ----------------------------------------------------

    def _names_of_parameters(self) -> Dict[torch.nn.Parameter, str]:
        assert self._tables is not None
        return {table.parameter: table.name for table in self._tables.tables}

    def _begin_with(self, states: Dict[torch.nn.Parameter, TableState]) -> None:
        if self._loader is not None:
            raise RuntimeError(
                "optimizer.load_state_dict(): the job has begun; load before the first batch"
            )
        self._first_states.update(states)

    def _first_state(self) -> Optional[List[TableState]]:
        """By table; None if all optimizers are new."""
        assert self._tables is not None
        states = list(self._first_states.values())
        if all(state.updates == 0 and not any(map(torch.any, state.slots)) for state in states):
            return None
        rules = self._optimizers.rules
        return [
            self._first_states.get(table.parameter)
            or from_torch(rules[group], table.name, table.values.shape, {})
            for table, group in zip(self._tables.tables, self._groups)
        ]

    def _fetch_state(self) -> Optional[List[TableState]]:
        assert self._tables is not None and self._values is not None
        between = self._step is None and not self._over
        if between:
            self._check_values()
        states = self._world.optimizer_state()
        if self._step is None:
            self._tables.refresh()
        if between:
            self._note_values(self._steps_done)
        return states

    def _optimizer_state(self) -> Dict[torch.nn.Parameter, TableState]:
        """By parameter; empty before the job has begun, if it begins with none."""
        if threading.get_ident() != self._thread or os.getpid() != self._pid:
            raise RuntimeError(
                "optimizer.state_dict(): it is called by the script's main thread, in its own process"
            )
        states: Optional[List[TableState]]
        if self._loader is None:
            return self._first_states
        else:
            states = self._last_state if self._over else self._fetch_state()
            if states is None:
                raise RuntimeError(
                    f"optimizer.state_dict(): the job is over, and worker {self.rank} is not the one that "
                    "concluded it; call it on that one (mostly worker 0), or before the last step"
                )
        assert self._tables is not None
        return {table.parameter: state for table, state in zip(self._tables.tables, states)}

    def _agree_on_skip(self, skips: bool) -> bool:
        """Whether any worker skips its step, where all have to; else whether this one does."""
        if self.world_size == 1 or not (self._in_step_together or self._summed):
            return skips
        brought = self._gather("GradScaler.step()", "GradScaler.step()", skips)
        return any(value for _, value in brought)

    def _scale_gradients(self, optimizer: Optimizer, factor: float) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)

    def _finish_step(self, optimizer: Optimizer, loss: Any, skips: bool = False) -> None:
        """``step()`` of the optimizer, which ``skips``: its parameters stay as they are, too."""
        if self._batch is None or (self._steps_per_batch == 1 and self._step is None):
            raise RuntimeError(
                "optimizer.step(): no step is open; it is called once for each step of a job.loader(). If it is "
                "called several times for a batch, give job.optimizer(..., steps_per_batch=N)"
            )
        if self._calls >= self._steps_per_batch:
            raise RuntimeError(
                f"optimizer.step(): it was called {self._calls + 1} times for one batch, and job.optimizer() was "
                f"told of {self._steps_per_batch}; give job.optimizer(..., steps_per_batch=N) to the one that "
                "steps more often"
            )
        due = self._due()
        self._calls += 1
        if self._step != due:
            # Of a batch that comes again, or that others have gone on from: it was done before
            # (the job's step is a later one), or will be.
            optimizer.zero_grad()
            return
        self._stepped = True
        if skips:
            optimizer.zero_grad()
        self._do_step(None if skips else optimizer)
        if loss is not None:
            self._world.log("loss", _number("loss", loss))
        self._go_on_in_batch()

    def _do_step(self, optimizer: Optional[Optimizer]) -> None:
        """The step at hand, in which the parameters of other optimizers stay as they are."""
        assert self._tables is not None and self._overlap is not None and self._step is not None
        assert self._arrivals is not None
        by_table = bool(self._arrivals.missing)
        self._arrivals.end_step()
        self._tables.check_frozen()
        if self._keeps_values:
            self._tables.take_over()
        else:
            self._tables.check_unchanged()
            if by_table:
                self._note_values(self._step)
        by_group = self._optimizers.step_options()
        sent_with, self._sent_with = self._sent_with, None
        if sent_with is not None and sent_with != by_group:
            raise RuntimeError(
                "a learning rate or a momentum was changed between backward and optimizer.step(), when gradients "
                "were on their way: let the scheduler step after the optimizer, or give "
                "job.optimizer(overlap=False)"
            )
        options = [by_group[group] for group in self._groups]
        handed = self._overlap.end_step(optimizer is not None)
        skipped = [
            index
            for index, (table, owner) in enumerate(zip(self._tables.tables, self._owner))
            if owner is not optimizer or (table.parameter.grad is None and not table.parameter.requires_grad)
        ]
        if self._summed and (self._step == 0 or self._looks_at_replicas(self._step)):
            self._compare_skipped(optimizer, skipped)
        gradients = self._gradients(handed, options, set(skipped))
        for table, owner in zip(self._tables.tables, self._owner):
            if owner is optimizer:
                table.parameter.grad = None
        if self._world.finish_step(gradients, options, skipped):
            self._steps_done = self._step + 1
        if self._by_all_reduce:
            self._tables.refresh()
        elif self._step == 0:  # It has been by all-reduce.
            self._note_values(0)
        self._step = None

    def _gradients(
        self, handed: List[bool], options: List[Any], skipped: Set[int]
    ) -> List[Optional[torch.Tensor]]:
        """Those that have not left. Alone there is none where the script has made none."""
        assert self._tables is not None
        tables = self._tables.tables
        if not self._world.sends:
            return [
                None if index in skipped or t.parameter.grad is None else t.gradient()
                for index, t in enumerate(tables)
            ]
        gradients: List[Optional[torch.Tensor]] = []
        missing = []
        for index, table in enumerate(tables):
            if handed[index] or index in skipped:
                gradients.append(None)
                continue
            if table.parameter.grad is None:
                missing.append(index)
            gradients.append(table.gradient())
        if self._never_had:
            self._never_had.intersection_update({*missing, *skipped})
        if missing:
            rules = self._optimizers.rules
            self._say_zeros(
                [
                    tables[index]
                    for index in missing
                    if options[index].rate_factor != 0
                    and not rules[self._groups[index]].ignores_zeros(moves=index not in self._never_had)
                ]
            )
        return gradients

    def _say_zeros(self, without: List[Table]) -> None:
        """Parameters without gradient that the optimizer changes all the same."""
        if without and not self._zeros_said:
            self._zeros_said = True
            self._warn(
                f"step {self._step}: no gradient of {_agreement.some_names([t.name for t in without])}. It counts "
                "as zeros, so momentum and weight decay still change the parameter, which torch.optim leaves "
                "as it is; give it a parameter group without them, or freeze it before job.model()"
            )

    def _hand_over(self, index: int) -> None:
        """A gradient during backward, with the options that its group has then."""
        assert self._tables is not None and self._arrivals is not None
        if self._sent_with is None:
            self._sent_with = self._optimizers.step_options()
        options = self._sent_with[self._groups[index]]
        with self._arrivals.lock:
            self._world.gradient(index, self._tables.tables[index].gradient(), options)

    # ---- Evaluation ----------------------------------------------------------

    def _copy_of_model(self) -> Tables:
        """A second module, with all but the trained parameters as it is in the first now."""
        assert self._tables is not None
        module, shared = _copies.copy_of(self._tables.module)
        if shared and not self._shared_said:
            self._shared_said = True
            self._warn(
                f"job.evaluate(): {'; '.join(shared[:3])} cannot be copied, so the model that is trained and its "
                "copy that is evaluated have it in common"
            )
        self._copy = Tables(module, names={table.name for table in self._tables.tables})
        self._copy.bind(self._rules())
        return self._copy

    def _start_evaluation(self, task: Any) -> None:
        self._wait_for_evaluation()
        self._raise_evaluation_error()
        assert self._tables is not None
        model = self._copy_of_model()
        _worlds.load_evaluation(task, model)
        model.set_companions(self._tables.companions())
        self._evaluating = threading.Thread(
            target=self._evaluate_copy,
            args=(task, self._evaluate, _device.like_here(self.device)),
            name="slackline-evaluation",
            daemon=True,
        )
        self._evaluating.start()

    def _evaluate_copy(
        self, task: Any, function: Callable[[torch.nn.Module], Scores], device: Any
    ) -> None:
        assert self._copy is not None
        if self._world.threads:
            torch.set_num_threads(self._world.threads)
        try:
            with device:
                scores = _run(function, self._copy.module)
            self._world.evaluated(task, scores, self._copy)
        except BaseException as error:  # The main thread raises it.
            self._evaluation_error = error

    def _evaluate_final(self) -> None:
        assert self._tables is not None and self._evaluate is not None
        self._wait_for_evaluation()
        model = self._copy_of_model()
        with torch.no_grad():
            for mine, theirs in zip(self._tables.tables, model.tables):
                theirs.parameter.copy_(mine.parameter)
        done = threading.Event()

        def report() -> None:
            while not done.wait(_PROGRESS_SECONDS):
                try:
                    self._world.report_progress()
                except _core.JobError:  # The end comes by itself.
                    return

        progress = threading.Thread(target=report, name="slackline-progress", daemon=True)
        progress.start()
        try:
            self._final_scores = _run(self._evaluate, model.module)
        finally:
            done.set()
            progress.join()

    def _wait_for_evaluation(self) -> None:
        if self._evaluating is not None:
            self._evaluating.join()
            self._evaluating = None

    def _raise_evaluation_error(self) -> None:
        error, self._evaluation_error = self._evaluation_error, None
        if error is not None:
            raise error

    # ---- Errors and signals --------------------------------------------------

    def _watch_errors(self) -> None:
        previous = sys.excepthook

        def hook(kind: Any, error: Any, trace: Any) -> None:
            self._on_error(kind, error, trace)
            if issubclass(kind, _core.JobSuspended):
                print(f"slackline: the job is suspended: {error}", file=sys.stderr)
                _at_last.code = _core.exit_code_suspended
            elif issubclass(kind, _core.JobError):
                print(f"slackline: error: {error}", file=sys.stderr)
            else:
                previous(kind, error, trace)
                if self._said_last:  # The last line of a log is what `slackline run` repeats.
                    self._say_after_end(self._said_last)

        sys.excepthook = hook
        leave = sys.exit

        def noted(status: Any = None) -> None:
            # What Python prints of it goes by without the job.
            caller = sys._getframe(1)
            place = f"{os.path.basename(caller.f_code.co_filename)}:{caller.f_lineno}"
            self._exit = f" (sys.exit({status!r}) at {place})"
            if self._finished and status not in (None, 0):
                self._say_after_end(f"sys.exit({status!r}) ({place})")
            leave(status)

        sys.exit = noted  # type: ignore[assignment]

    def _on_error(self, kind: Any, error: Any, trace: Any) -> None:
        if self._failed or os.getpid() != self._pid:
            return
        self._failed = True
        if issubclass(kind, KeyboardInterrupt):
            self._world.interrupt(f"worker {self.rank} was interrupted by SIGINT")
        elif not issubclass(kind, _core.JobError):
            frames = traceback.extract_tb(trace)
            own = [f for f in frames if not f.filename.startswith(_NOT_THE_SCRIPT)]
            where = own[-1] if own else (frames[-1] if frames else None)
            place = f" ({os.path.basename(where.filename)}:{where.lineno})" if where else ""
            said = traceback.format_exception_only(kind, error)[-1].strip()
            whole = "".join(traceback.format_exception(kind, error, trace))
            if self._finished:
                self._said_last = f"{said}{place}"
            else:
                self._world.fail(_cut(f"{said}{place}"), _cut(whole), self._error_ends_job)

    def _say_after_end(self, what: str) -> None:
        """For the last line of `slackline run`: the job itself has ended well."""
        if not isinstance(self._world, _worlds.Alone):
            print(f"slackline: error: worker {self.rank}: {what}", file=sys.stderr, flush=True)

    def _watch_signals(self) -> None:
        """Has a signal end a wait for the others, which Python's own handlers cannot.

        In a job with checkpoints the first SIGTERM asks for one, after which the job ends,
        and the script goes on until then; unless the script has a handler of its own.
        """
        alone = isinstance(self._world, _worlds.Alone)
        if alone or threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_sigterm)
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        before = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        if before != -1:  # Somebody else's, for example an event loop's.
            signal.set_wakeup_fd(before)
            os.close(read_end)
            os.close(write_end)
            return
        os.register_at_fork(after_in_child=_forget_wakeup)

        def watch() -> None:
            first = True
            while True:
                for number in os.read(read_end, 64):
                    if number not in (signal.SIGINT, signal.SIGTERM):
                        continue
                    reason = f"worker {self.rank} was interrupted by {signal.Signals(number).name}"
                    ours = signal.getsignal(signal.SIGTERM) == self._on_sigterm
                    if first and number == signal.SIGTERM and ours and self._may_suspend():
                        self._world.suspend(reason)
                    else:
                        self._world.interrupt(reason)
                    first = False

        threading.Thread(target=watch, name="slackline-signals", daemon=True).start()

    def _may_suspend(self) -> bool:
        return self._world.may_suspend and not (self._over or self._finished or self._failed)

    def _on_sigterm(self, number: int, frame: Any) -> None:
        # The thread of _watch_signals() has asked for a checkpoint.
        if not self._sigterm_came and self._may_suspend():
            self._sigterm_came = True
            return
        self._ended_by_signal = True
        sys.exit(128 + number)

    def _at_exit(self) -> None:
        if os.getpid() != self._pid:
            return
        try:
            begun = self._loader is not None or self._finished
            if not (begun or self._failed or self._ended_by_signal):
                ended = f"its script ended before its first batch{_cut(self._exit)}"
                self._world.fail(ended, "", self._error_ends_job)
            if self._loader is not None and not self._finished and not self._failed:
                if self._over or self._is_over():
                    self.finish()
                else:
                    early = (
                        f"its script ended after {self._steps_done} of {self._work.steps_total} "
                        f"steps; iterate job.epochs() to its end{_cut(self._exit)}"
                    )
                    print(f"slackline: error: worker {self.rank}: {early}", file=sys.stderr)
                    self._world.fail(early, "", self._error_ends_job)
                    _at_last.code = 1
        except _core.JobSuspended as error:
            print(f"slackline: the job is suspended: {error}", file=sys.stderr)
            _at_last.code = _core.exit_code_suspended
        except _core.JobError as error:
            print(f"slackline: error: {error}", file=sys.stderr)
            _at_last.code = 1
        finally:
            if self._evaluating is not None:
                self._evaluating.join(_PATIENCE_SECONDS)
            self._world.close()


class _AtLast:
    """Ends the process with this code, if that is only found out when it ends."""

    code = 0

    def __call__(self) -> None:
        if self.code != 0:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)


# Registered before all of a script's, so called after them.
_at_last = _AtLast()
atexit.register(_at_last)


def _cut(text: str) -> str:
    """A text of the script's for the records of the run: its begin and its end."""
    data = text.encode("utf-8", "replace")
    if len(data) > _TEXT_BYTES_MAX:
        half = _TEXT_BYTES_MAX // 2 - 32
        data = data[:half] + b"\n... (cut here) ...\n" + data[-half:]
    return data.decode("utf-8", "ignore")


def _forget_wakeup() -> None:
    try:
        signal.set_wakeup_fd(-1)
    except ValueError:  # Not the main thread.
        pass


def _seed(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _for_other_data(loader: Loader, of_job: Loader) -> str:
    if loader.dataset is of_job.dataset:
        return ""
    return ". To evaluate on other data, take the batches of a torch.utils.data.DataLoader"


def _options_text(here: List[Dict[str, float]], there: List[Dict[str, float]], worker: int) -> str:
    """What differs, of each group: "the learning rate is [0.1] here and [0.2] on worker 0"."""
    said = []
    for option, word in (("lr", "learning rate"), ("momentum", "momentum")):
        mine, theirs = ([of.get(option) for of in options] for options in (here, there))
        if mine != theirs:
            said.append(f"the {word} is {mine} here and {theirs} on worker {worker}")
    return ", ".join(said)


def _are_tensors(x: Any, value: Any) -> bool:
    return isinstance(x, torch.Tensor) and isinstance(value, torch.Tensor)


def _number(name: str, value: Any) -> float:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(f"'{name}' has {value.numel()} values; one is required")
        return float(value.detach())
    return float(value)


def _run(function: Callable[[torch.nn.Module], Scores], module: torch.nn.Module) -> Dict[str, float]:
    module.eval()
    with torch.no_grad():
        scores = function(module)
    if scores is None:
        return {}
    if not isinstance(scores, Mapping):
        scores = {"accuracy": scores}
    figures = {name: _number(name, value) for name, value in scores.items()}
    accuracy = figures.get("accuracy", 0.0)
    if not 0 <= accuracy <= 1:
        raise ValueError(
            f"job.evaluate(): the accuracy is {accuracy}, it has to be in [0, 1]; return a dict to "
            "give other figures their names"
        )
    return figures
