"""MLflow, Weights & Biases and TensorBoard behind one interface.

whole() is a place as it is used: without one that by default, a folder by its whole path.
begin() makes a run there and returns its id, or goes on with that of a known one;
then describe(), once or again, log(), and end(), without an End if the run itself goes on. What they raise is
the packages' own, and the caller's to catch: a run never depends on its tracker.
MLflow and wandb are imported when they are asked for; TensorBoard's files need no
package.
"""

import dataclasses
import importlib
import importlib.util
import os
import pathlib
import re
import sys
from typing import Any, Optional, Union

from . import figures, tensorboard

# What to install for each, where there is anything to.
PIP_PACKAGES = {"mlflow": "mlflow-skinny", "wandb": "wandb", "tensorboard": ""}
METRICS_AT_ONCE = 1000  # MLflow's own bound for a batch, and 100 parameters.
PARAMETERS_AT_ONCE = 100
PARAMETER_CHARACTERS = 6000


class TrackError(Exception):
    """Says what is wrong and what to do."""


@dataclasses.dataclass(frozen=True)
class Beginning:
    """What is known of a run, or of an experiment, when it begins."""

    name: str
    project: str
    folder: pathlib.Path
    started: float  # Seconds since 1970.
    parent: Optional[str]  # The id of the experiment's, if it is one of its runs.
    group: str  # The name of the experiment; empty: it has none.
    config: dict[str, str]  # By the path of each field.
    tags: dict[str, str]


@dataclasses.dataclass(frozen=True)
class End:
    finished: bool  # Else it has failed.
    figures: dict[str, float]
    tags: dict[str, str]
    files: list[pathlib.Path]  # Those that are there.
    model: Optional[pathlib.Path]


class Mlflow:
    """PLACE is a folder or the address of a server; without one what MLflow's own
    MLFLOW_TRACKING_URI says, else the folder mlruns."""

    def __init__(self, place: str) -> None:
        whole = self.whole(place)
        if whole.startswith("file:"):
            # MLflow 3 asks to be told that a plain folder is meant.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        # Else a server that is gone holds everything up for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        self._mlflow = _import("mlflow")
        self._client = importlib.import_module("mlflow.tracking").MlflowClient(tracking_uri=whole)
        self._started: dict[str, float] = {}

    @staticmethod
    def whole(place: str) -> str:
        place = place or os.environ.get("MLFLOW_TRACKING_URI", "mlruns")
        if "://" in place or place.startswith("databricks"):
            return place
        return pathlib.Path(place).absolute().as_uri()

    def begin(self, run: Beginning, known: Optional[str]) -> str:
        if known is not None:
            self._started[known] = run.started
            self._client.update_run(known, status="RUNNING")
            return known
        experiment = self._client.get_experiment_by_name(run.project)
        where = experiment.experiment_id if experiment else self._client.create_experiment(run.project)
        tags = dict(run.tags)
        if run.parent is not None:
            tags["mlflow.parentRunId"] = run.parent
        made = self._client.create_run(
            where, start_time=int(run.started * 1000), run_name=run.name, tags=tags
        ).info.run_id
        self._started[made] = run.started
        return str(made)

    def describe(self, made: str, run: Beginning) -> None:
        param = self._mlflow.entities.Param
        parameters = [param(key, value[:PARAMETER_CHARACTERS]) for key, value in run.config.items()]
        for at in range(0, len(parameters), PARAMETERS_AT_ONCE):
            self._client.log_batch(made, params=parameters[at : at + PARAMETERS_AT_ONCE])

    def log(self, run: str, new: list[figures.Figures]) -> None:
        metric = self._mlflow.entities.Metric
        metrics = [
            metric(name, value, int((self._started[run] + of.seconds) * 1000), of.step)
            for of in new
            for name, value in of.values.items()
        ]
        for at in range(0, len(metrics), METRICS_AT_ONCE):
            self._client.log_batch(run, metrics=metrics[at : at + METRICS_AT_ONCE])

    def end(self, run: str, end: Optional[End]) -> None:
        if end is None:
            return
        self.log(run, [figures.Figures(0, 0.0, end.figures)])
        for key, value in end.tags.items():
            self._client.set_tag(run, key, value)
        for file in [*end.files, *([end.model] if end.model else [])]:
            self._client.log_artifact(run, str(file))
        self._client.set_terminated(run, "FINISHED" if end.finished else "FAILED")


class Wandb:
    """PLACE is a folder for offline runs, which `wandb sync` sends later; without one
    runs go to where wandb is logged in."""

    def __init__(self, place: str) -> None:
        self._wandb = _import("wandb")
        self._place = pathlib.Path(self.whole(place)) if place else None
        if self._place is not None:
            self._place.mkdir(parents=True, exist_ok=True)
        self._runs: dict[str, Any] = {}

    @staticmethod
    def whole(place: str) -> str:
        return _whole_folder(place)

    def begin(self, run: Beginning, known: Optional[str]) -> str:
        made = self._wandb.init(
            project=run.project,
            name=run.name,
            id=known,
            resume="allow" if known is not None else None,
            group=run.group or None,
            job_type="run" if run.parent or not run.group else "experiment",
            config={**{key: _typed(value) for key, value in run.config.items()}, **run.tags},
            dir=str(self._place or run.folder),
            mode="offline" if self._place else None,
            reinit="create_new",
            settings=self._wandb.Settings(console="off", silent=True),
        )
        made.define_metric("*", step_metric="step")
        self._runs[made.id] = made
        return str(made.id)

    def describe(self, made: str, run: Beginning) -> None:
        pass  # That has all been said.

    def log(self, run: str, new: list[figures.Figures]) -> None:
        for of in new:
            self._runs[run].log({**of.values, "step": of.step, "seconds": of.seconds})

    def end(self, run: str, end: Optional[End]) -> None:
        made = self._runs.pop(run)
        if end is None:
            # With both it is preempted there, which is to be gone on with, and not finished.
            made.mark_preempting()
            made.finish(exit_code=1)
            return
        made.summary.update({**end.figures, **end.tags})
        for kind, files in (("records", end.files), ("model", [end.model] if end.model else [])):
            if not files:
                continue
            artifact = self._wandb.Artifact(f"{kind}-{run}", type=kind)
            for file in files:
                artifact.add_file(str(file))
            made.log_artifact(artifact)
        made.finish(exit_code=0 if end.finished else 1)


class TensorBoard:
    """PLACE is a folder; without one tensorboard/ in that of the run or experiment."""

    def __init__(self, place: str) -> None:
        self._place = pathlib.Path(self.whole(place)) if place else None
        self._runs: dict[str, float] = {}  # When each started, by folder, which is its id.

    @staticmethod
    def whole(place: str) -> str:
        return _whole_folder(place)

    def begin(self, run: Beginning, known: Optional[str]) -> str:
        folder = pathlib.Path(known or self._new_folder(run)).absolute()
        self._runs[str(folder)] = run.started
        if known is None:
            for old in folder.glob("events.out.tfevents.*.slackline"):  # Of a report.
                old.unlink()
        return str(folder)

    def describe(self, made: str, run: Beginning) -> None:
        lines = [f"{key}: {value}" for key, value in {**run.tags, **run.config}.items()]
        self._append(made, tensorboard.text_event(run.started, "config", _as_block(lines)))

    def _new_folder(self, run: Beginning) -> pathlib.Path:
        if run.parent is not None:
            return pathlib.Path(run.parent) / run.name
        if self._place is None:
            return run.folder / "tensorboard"
        folder, number = self._place / run.name, 1
        while folder.exists():  # Another run has that name.
            number += 1
            folder = self._place / f"{run.name}-{number}"
        return folder

    def log(self, run: str, new: list[figures.Figures]) -> None:
        started = self._runs[run]
        self._append(run, b"".join(tensorboard.scalar_events(started, of) for of in new))

    def end(self, run: str, end: Optional[End]) -> None:
        if end is None:
            return
        self.log(run, [figures.Figures(0, 0.0, end.figures)])
        lines = [f"{key}: {value}" for key, value in end.tags.items()]
        self._append(run, tensorboard.text_event(self._runs[run], "end", _as_block(lines)))

    def _append(self, run: str, events: bytes) -> None:
        if not events:
            return
        path = pathlib.Path(run) / tensorboard.file_name(self._runs[run])
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            events = tensorboard.beginning(self._runs[run]) + events
        with open(path, "ab") as file:
            file.write(events)


Tracker = Union[Mlflow, Wandb, TensorBoard]
_KINDS: dict[str, type[Tracker]] = {"mlflow": Mlflow, "wandb": Wandb, "tensorboard": TensorBoard}


def check_names(each: list[str]) -> None:
    """TrackError: one of them is no tracker, or there twice."""
    seen: dict[str, str] = {}
    for to in each:
        kind, colon, place = to.partition(":")
        if kind not in _KINDS:
            raise TrackError(f"'{to}' is no tracker; {', '.join(_KINDS)} are, with :PLACE or without")
        if colon and not place:
            raise TrackError(f"tracker '{to}' has no place after the colon; write one, or leave out the colon")
        key = key_of(to)
        if key in seen:
            both = "is there more than once" if seen[key] == to else f"and {seen[key]} are the same"
            raise TrackError(f"--to {to} {both}; leave one out")
        seen[key] = to


def check_package(to: str) -> None:
    """TrackError: that of a tracker is missing here."""
    kind = to.partition(":")[0]
    if PIP_PACKAGES[kind] and importlib.util.find_spec(kind) is None:
        raise TrackError(
            f"tracker '{to}': {sys.executable} has no package {kind}; install it with: "
            f"{sys.executable} -m pip install {PIP_PACKAGES[kind]}"
        )


def key_of(to: str) -> str:
    """Alike for two ways to write the same tracker and place, and without secrets."""
    kind, _, place = to.partition(":")
    return without_secrets(f"{kind}:{_KINDS[kind].whole(place)}")


def make(to: str) -> Tracker:
    """Of a text that check_names() has nothing against."""
    kind, _, place = to.partition(":")
    return _KINDS[kind](place)


def _whole_folder(place: str) -> str:
    return str(pathlib.Path(place).absolute()) if place else ""


def _import(package: str) -> Any:
    return importlib.import_module(package)


def without_secrets(text: str) -> str:
    """Of addresses the part before the last @, and passwords and tokens in the query, are nobody
    else's to read. A password may have an @ or a / itself."""
    text = re.sub(r"(?<=://)\S*@", "", text)
    return re.sub(r"(?i)([?&][^=&\s]*(?:password|token)=)[^&\s]*", r"\1...", text)


def _typed(value: str) -> Union[int, float, str]:
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return value


def _as_block(lines: list[str]) -> str:
    """TensorBoard shows texts as Markdown: indented lines stay as they are."""
    return "".join(f"    {line}\n" for line in lines)
