"""A script's place in a job: model, optimizer, data, evaluation, the end."""

from __future__ import annotations

import os
from typing import Any, Callable, Iterable, Iterator, List, Optional, Union

import torch

from slackline import _core, _sync_batch_norm
from slackline._tensors import devices, files
from slackline._data.loader import Loader
from slackline._data.order import Orders
from slackline._tensors.images import Images
from slackline._loop import collectives
from slackline._loop.evaluations import Scores
from slackline._loop.exits import Exits
from slackline._loop.model import Model
from slackline._loop.opening import seed_all
from slackline._loop.step_loop import StepLoop
from slackline._loop.words import number
from slackline._loop.worlds import World
from slackline._optim.rules import Rule, rule_of_config
from slackline._optimizer import Optimizer, Source, make_optimizer


class Job:
    """What ``slackline.join()`` returns.

    In the order of a script: ``model()``, ``optimizer()``, ``loader()`` and the
    loop over ``epochs()``, ``evaluate()``, ``save()``. The main thread calls all
    of it. Errors of the job itself are ``slackline.JobError``: it was stopped,
    or has lost a process that it needs; the message says which.
    """

    def __init__(self, world: World, seed: bool, error_ends_job: bool) -> None:
        self._world = world
        self._loop = StepLoop(world, seeds=seed)
        self._orders = Orders(world.seed)
        self._images = Images(world.out)
        if slow := _core.choose_blas_kernels():
            self._loop.warn(slow)
        if world.threads:
            _core.set_blas_threads(world.threads)
            torch.set_num_threads(world.threads)
        if seed:
            seed_all(world.seed)
        self._exits = Exits(world, self._loop, error_ends_job)

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
        return self._loop.place.steps_done

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
        if self._loop.has_model:
            raise RuntimeError(
                "job.model() was called before; put several models into one torch.nn.ModuleDict"
            )
        devices.check_model(module, self.device)
        self._synchronise_batch_norm(module)
        model = Model(module, self._world, overlap)
        self._loop.take_model(model)
        unwritable = model.tables.unwritable()
        if unwritable and self.rank == 0:
            self._loop.warn(
                f"job.model(): {'; '.join(unwritable[:3])}: the files of the trained model will not have "
                "it, so keep it beside them, or give register_buffer(persistent=False)"
            )
        return module

    def _synchronise_batch_norm(self, module: torch.nn.Module) -> None:
        together = self.world_size > 1
        names = _sync_batch_norm.take_over(module, self._exchange if together else None)
        if names and together and not self._world.steps_together:
            raise ValueError(
                f"job.model(): '{names[0]}' is a SyncBatchNorm, which waits for the batches of all workers, and in "
                f"{self.mode} each is at another step; use --mode bsp or allreduce, or BatchNorm, whose means are "
                "each worker's, or GroupNorm, which needs no others"
            )

    def _exchange(self, vector: torch.Tensor) -> List[torch.Tensor]:
        """Of a layer, in forward and in backward, which all workers do in one order."""
        described = f"SyncBatchNorm({vector.numel()})"
        brought = self._loop.gathers.gather("SyncBatchNorm", described, vector, any_thread=True)
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
        loop = self._loop
        if not loop.has_model:
            raise RuntimeError("job.optimizer(): call job.model() first")
        if loop.place.begun:
            raise RuntimeError("job.optimizer(): the job has begun; call it before the first batch")
        if steps_per_batch < 1:
            raise ValueError(f"job.optimizer(): steps_per_batch is {steps_per_batch}; at least 1 is required")
        given = self._world.optimizer
        of_config = None if given is None else rule_of_config(*given)
        factors = {None: 1.0, "linear": float(self.world_size), "sqrt": self.world_size**0.5}
        if scale_lr not in factors:
            raise ValueError(
                f"job.optimizer(): scale_lr is {scale_lr!r}; 'linear', 'sqrt' or None is required"
            )
        made = make_optimizer(
            loop, source, rule, of_config, loop.model.names(), loop.optimizers.parameters, factors[scale_lr]
        )
        if scale_lr is not None:
            loop.scaled = f"; learning rates x {factors[scale_lr]:.4g}, as scale_lr='{scale_lr}' says"
        loop.take_optimizer(made, steps_per_batch, overlap)
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
            self._loop,
            self._orders,
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
        return self._loop.epochs(epochs)

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
        if self._loop.place.begun:
            raise RuntimeError("job.keep(): the job has begun; call it before the first batch")
        self._loop.kept.add(objects)

    # ---- What is measured ----------------------------------------------------

    def log(self, **values: Union[float, torch.Tensor]) -> None:
        """Figures of the step, for the records of the run; ``loss`` is the training loss.

        They appear in ``slackline top`` and ``status`` (the loss) and in
        ``metrics.jsonl`` as means over some steps.
        """
        if not self._loop.place.begun:
            raise RuntimeError("job.log(): nothing was trained yet")
        for name, value in values.items():
            self._world.log(name, number(name, value))

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
        self._images.write(name, self.steps, image)

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
        self._loop.evaluations.raise_error()
        self._loop.evaluations.function = function
        self._loop.start_evaluation()

    def save(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Writes the model to a safetensors file, on the worker that concludes the job.

        After the last step that is the trained model. ``slackline.load(path)`` reads it
        for ``load_state_dict()`` of the plain module; so do other libraries. The folder
        of the run has ``model.safetensors`` in any case. Before the last step, and in a
        job that was stopped before it, worker 0 writes the parameters as they are there;
        if a step had begun over servers, some may be those of the step before.
        """
        loop, place = self._loop, self._loop.place
        if not loop.has_model:
            raise RuntimeError("job.save(): call job.model() first")
        trained = False
        if place.begun:
            at_end = loop.is_over()
            # Else a stop rule has ended it. Of an elastic job nobody knows before; there
            # worker 0 is the one that concludes, if it lives.
            trained = place.all_done and not place.elastic
            if trained or at_end:
                self.finish()
        if not place.was_chief and (trained or self.rank != 0):
            return
        state = {
            name: tensor
            for name, tensor in loop.model.tables.module.state_dict().items()
            if isinstance(tensor, torch.Tensor) and not files.why_not(tensor)
        }
        files.save(state, path, {"job": self._world.job})

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
        described = collectives.describe_reduction(x, op)
        values = [v for _, v in self._loop.gathers.gather("job.all_reduce()", described, x)]
        result = collectives.reduce(values, op)
        return result.to(x.device) if isinstance(x, torch.Tensor) else result

    def all_gather(self, x: collectives.Value) -> List[Any]:
        """What all workers give, in the order of ranks, on all of them.

        ``x`` is a tensor (of any shape on each worker), a number, a string, None, or a
        list or dict of numbers, strings and the like. The list has one item for each
        worker that took part: as many as ``world_size``, if none is gone. See
        ``all_reduce()`` for where it may be called.
        """
        values = [v for _, v in self._loop.gathers.gather("job.all_gather()", "all_gather()", x)]
        return [v.to(x.device) if _are_tensors(x, v) else v for v in values]

    def broadcast(self, x: collectives.Value, src: int = 0) -> Any:
        """What worker ``src`` gives, on all workers; the others may give None.

        ``x`` is as for ``all_gather()``. Raises RuntimeError if that worker is gone. See
        ``all_reduce()`` for where it may be called.
        """
        if not 0 <= src < self.world_size:
            raise ValueError(f"job.broadcast(): src is {src}; 0 to {self.world_size - 1} is required")
        call = "job.broadcast()"
        mine = x if self.rank == src else None
        values = dict(self._loop.gathers.gather(call, f"broadcast(src={src})", mine))
        if src not in values:
            raise RuntimeError(f"{call}: worker {src} is gone, and nobody else has its value")
        value = values[src]
        return value.to(x.device) if _are_tensors(x, value) else value

    def barrier(self) -> None:
        """Waits until all workers have come here. See ``all_reduce()``."""
        self._loop.gathers.gather("job.barrier()", "barrier()", None)

    # ---- The end -------------------------------------------------------------

    def finish(self) -> None:
        """Waits for the end of the job, after the last step. Called by ``epochs()``.

        Raises RuntimeError before the last step.
        """
        self._loop.finish()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.finish()
        else:
            self._exits.on_error(kind, error, trace)


def _are_tensors(x: Any, value: Any) -> bool:
    return isinstance(x, torch.Tensor) and isinstance(value, torch.Tensor)
