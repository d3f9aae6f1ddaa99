"""Reads the folder of an experiment: experiment.json, and of each run run.json,
summary.json, metrics.jsonl, cluster.textproto and images/NAME/STEP.png. Reads
the folder of a single run, too, which has no run.json.

A run has diverged when a loss or a gradient was no finite number. Whoever made it
says that it has failed; here it is no failure but an outcome, with its step.

What is optional and missing is None or empty. A file that is damaged costs its
run, which then has state DAMAGED, and leaves one line in Experiment.problems;
only without a readable experiment.json is there nothing to report.
"""

import dataclasses
import json
import math
import pathlib
import re
import struct
from typing import Any, Optional

FINISHED = "finished"
FAILED = "failed"
DIVERGED = "diverged"
TO_DO = "to do"
DAMAGED = "damaged"
NOT_TUNED = "not tuned"  # Not made, as no value of the search was good.
TARGET_KINDS = ("test_accuracy", "test_loss")
LOSSES = ("test_loss", "train_loss")
# What a run says that has diverged: causes in its summary.json, and, of programs
# that wrote none or one that says less, words.
DIVERGED_CAUSES = ("DIVERGED", "NONFINITE_GRADIENT")
DIVERGED_WORDS = re.compile(r"\bdiverged\b|gradient with a NaN or an infinity")


class LoadError(Exception):
    """Names the file, what is wrong with it and what to do."""


@dataclasses.dataclass(frozen=True)
class Record:
    """A line of metrics.jsonl. What the line has not is NaN, and so is a loss that is
    not a number, which is written as null."""

    kind: str  # "eval" or "train"
    rank: int
    step: int
    epoch: float
    seconds: float  # Since the job started to run.
    loss: float
    has_loss: bool  # A program of one's own may have none.
    accuracy: float  # Of "eval".
    examples_per_second: float  # Of "train".
    values: dict[str, float]  # Figures by the names of the workers' program.


@dataclasses.dataclass(frozen=True)
class Image:
    """What a worker's program gave to job.log_image()."""

    name: str
    step: int
    written: float  # Seconds since 1970.
    height: int
    width: int
    channels: int
    png: bytes


@dataclasses.dataclass
class Run:
    variant: str
    seed: int
    folder: str  # Relative to the experiment's.
    state: str  # FINISHED, DIVERGED, FAILED, TO_DO, DAMAGED or NOT_TUNED.
    error: str = ""
    diverged_at_step: Optional[int] = None  # Of DIVERGED, where it is known.
    command: str = ""
    commit: str = ""
    started: Any = None
    elapsed_seconds: float = math.nan  # From start to end of the command.
    config: str = ""  # Cluster config as text.
    summary: dict = dataclasses.field(default_factory=dict)
    records: list[Record] = dataclasses.field(default_factory=list)
    images: list[Image] = dataclasses.field(default_factory=list)

    def evaluations(self) -> list[Record]:
        """By step; of two at one step the later one."""
        by_step = {record.step: record for record in self.records if record.kind == "eval"}
        return [by_step[step] for step in sorted(by_step)]

    def has_wall_time(self) -> bool:
        """A replay has none."""
        return number(self.summary.get("wall_seconds")) > 0

    def examples_trained(self) -> float:
        """Over all workers; NaN if no file says it."""
        if self.has_wall_time():
            rate = number(self.summary.get("examples_per_second"))
            if rate > 0:
                return rate * number(self.summary.get("wall_seconds"))
        counted = [number(worker.get("examples")) for worker in self.workers()]
        return sum(counted) if counted and sum(counted) > 0 else math.nan

    def examples_per_epoch(self) -> float:
        """Size of the training data; NaN if no file says it."""
        text = re.search(r"(\d+) training", str(self.summary.get("data", "")))
        if text:
            return float(text.group(1))
        epochs = max((record.epoch for record in self.evaluations()), default=math.nan)
        return self.examples_trained() / epochs if epochs > 0 else math.nan

    def workers(self) -> list[dict]:
        """By rank."""
        return sorted(self.summary.get("worker") or [], key=lambda worker: worker["rank"])


@dataclasses.dataclass
class Variant:
    name: str
    mode: str
    set: list[str]
    replay: str
    axes: dict[str, str]
    config: str
    runs: list[Run] = dataclasses.field(default_factory=list)  # By seed.
    all_tries_diverged: bool = False  # So that it has no runs.

    def finished(self) -> list[Run]:
        return [run for run in self.runs if run.state == FINISHED]

    def diverged(self) -> list[Run]:
        return [run for run in self.runs if run.state == DIVERGED]

    def ended(self) -> list[Run]:
        """Those that tell something about the variant."""
        return [run for run in self.runs if run.state in (FINISHED, DIVERGED)]


@dataclasses.dataclass(frozen=True)
class Trial:
    """Of values that were tried for a variant before its runs."""

    values: dict[str, str]  # By field.
    result: Optional[float]  # Mean over the seeds; None: not all of its runs have one.
    diverged: int  # So many of its runs.
    runs: list[str]


@dataclasses.dataclass(frozen=True)
class TunedVariant:
    variant: str
    tried: list[Trial]
    chosen: dict[str, str]  # By field; empty: nothing could be chosen.
    at_edge: bool  # A better value may lie beyond those that were tried.
    left_out: str  # Why nothing was chosen, and no run made.


@dataclasses.dataclass(frozen=True)
class Tune:
    fields: list[str]
    seeds: list[int]
    measure: str  # One of TARGET_KINDS.
    elapsed_seconds: float  # Of all tries together, as far as it is known.
    variants: list[TunedVariant]


@dataclasses.dataclass
class Experiment:
    folder: pathlib.Path
    name: str
    title: str
    question: list[str]
    baseline: str  # Name of a variant.
    target: dict[str, float]  # Keys of TARGET_KINDS.
    command: str
    commit: str
    machine: dict
    seeds: list[int]
    variants: list[Variant]
    problems: list[str]  # One sentence for each damaged file.
    parallel: int = 1  # So many runs at the same time.
    tune: Optional[Tune] = None

    def runs(self) -> list[Run]:
        return [run for variant in self.variants for run in variant.runs]

    def variant(self, name: str) -> Variant:
        return next(variant for variant in self.variants if variant.name == name)


def number(value: Any) -> float:
    """NaN for what is no number, or so large that its square would not be one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) > 1e100:
        return math.nan
    return float(value)


def is_run(folder: pathlib.Path) -> bool:
    """Of a single run, not of an experiment."""
    if (folder / "experiment.json").exists():
        return False
    return (folder / "metrics.jsonl").exists() or (folder / "images").is_dir()


def load_run(folder: pathlib.Path, problems: list[str]) -> Run:
    """A run that has ended or goes on. An image that is damaged is left out, and a line in problems."""
    ended = (folder / "summary.json").exists()
    config = folder / "cluster.textproto"
    run = Run(variant=folder.name, seed=0, folder=folder.name, state=FINISHED if ended else TO_DO)
    if (folder / "run.json").exists():  # Of an experiment.
        run.started = read_object(folder / "run.json").get("started")
    elif config.exists():  # `slackline run` writes it at the start.
        run.started = config.stat().st_mtime
    if (folder / "metrics.jsonl").exists():
        run.records = _read_metrics(folder / "metrics.jsonl", ended)
    if ended:
        run.summary = _read_summary(folder / "summary.json")
    run.images = _read_images(folder / "images", problems)
    return run


def load_experiment(folder: pathlib.Path) -> Experiment:
    path = folder / "experiment.json"
    if not path.exists():
        raise LoadError(
            f"{path}: there is no such file, and no metrics.jsonl or images of a run; give the folder "
            "that `slackline compare` or `slackline run` wrote"
        )
    data = read_object(path)
    problems: list[str] = []
    variants: list[Variant] = []
    for index, entry in enumerate(_field(path, data, "variants", list)):
        if not isinstance(entry, dict) or not entry.get("name"):
            raise LoadError(f"{path}: variants[{index}] has no name; write the experiment again")
        variants.append(
            Variant(
                name=str(entry["name"]),
                mode=str(entry.get("mode") or ""),
                set=[str(change) for change in _field(path, entry, "set", list)],
                replay=str(entry.get("replay") or ""),
                axes={field: _text(value) for field, value in _field(path, entry, "axes", dict).items()},
                config=str(entry.get("config") or ""),
            )
        )
    if not variants:
        raise LoadError(f"{path}: it has no variants; at least one is required")
    by_name = {variant.name: variant for variant in variants}
    if len(by_name) != len(variants):
        raise LoadError(f"{path}: two variants have the same name; names must differ")
    for index, entry in enumerate(_field(path, data, "runs", list)):
        variant = by_name.get(str(entry.get("variant"))) if isinstance(entry, dict) else None
        if variant is None:
            raise LoadError(f"{path}: runs[{index}] names no variant of the experiment; write it again")
        variant.runs.append(_load_run(folder, entry, problems))
    for variant in variants:
        variant.runs.sort(key=lambda run: run.seed)
    baseline = str(data.get("baseline") or variants[0].name)
    if baseline not in by_name:
        raise LoadError(f"{path}: baseline '{baseline}' is no variant; known are {sorted(by_name)}")
    target = {}
    for kind in TARGET_KINDS:
        value = number(_field(path, data, "target", dict).get(kind))
        if math.isfinite(value):
            target[kind] = value
    parallel = number(data.get("parallel"))
    return Experiment(
        folder=folder,
        name=str(data.get("name") or folder.name),
        title=str(data.get("title") or data.get("name") or folder.name),
        question=[str(line) for line in _field(path, data, "question", list)],
        baseline=baseline,
        target=target,
        command=str(data.get("command") or ""),
        commit=str(data.get("commit") or ""),
        machine=_field(path, data, "machine", dict),
        seeds=sorted({run.seed for variant in variants for run in variant.runs}),
        variants=variants,
        problems=problems,
        parallel=max(1, int(parallel)) if math.isfinite(parallel) else 1,
        tune=_tune(path, data["tune"], by_name) if data.get("tune") is not None else None,
    )


def _tune(path: pathlib.Path, data: Any, variants: dict[str, Variant]) -> Tune:
    if not isinstance(data, dict):
        raise LoadError(f"{path}: tune is a {type(data).__name__}, it must be a dict")
    measure = str(data.get("measure"))
    if measure not in TARGET_KINDS:
        raise LoadError(f"{path}: tune.measure is '{measure}', it must be {' or '.join(TARGET_KINDS)}")
    tuned = []
    for index, entry in enumerate(_field(path, data, "variants", list)):
        name = str(entry.get("variant")) if isinstance(entry, dict) else ""
        if name not in variants:
            raise LoadError(
                f"{path}: tune.variants[{index}] names no variant of the experiment; write it again"
            )
        trials = []
        for place, trial in enumerate(_field(path, entry, "tried", list)):
            if not isinstance(trial, dict) or not _field(path, trial, "values", dict):
                raise LoadError(
                    f"{path}: tune.variants[{index}].tried[{place}] has no values; write it again"
                )
            result, diverged = number(trial.get("result")), number(trial.get("diverged"))
            trials.append(
                Trial(
                    values={field: _text(value) for field, value in trial["values"].items()},
                    result=result if math.isfinite(result) else None,
                    diverged=int(diverged) if math.isfinite(diverged) else 0,
                    runs=[str(run) for run in _field(path, trial, "runs", list)],
                )
            )
        chosen = {field: _text(value) for field, value in _field(path, entry, "chosen", dict).items()}
        left_out = str(entry.get("left_out") or "")
        variants[name].all_tries_diverged = bool(left_out) and all(trial.diverged > 0 for trial in trials)
        tuned.append(TunedVariant(name, trials, chosen, entry.get("at_edge") is True, left_out))
    return Tune(
        fields=[str(field) for field in _field(path, data, "fields", list)],
        seeds=[int(seed) for seed in map(number, _field(path, data, "seeds", list)) if math.isfinite(seed)],
        measure=measure,
        elapsed_seconds=_elapsed_seconds(
            path.parent, [name for t in tuned for trial in t.tried for name in trial.runs]
        ),
        variants=tuned,
    )


def _elapsed_seconds(folder: pathlib.Path, runs: list[str]) -> float:
    """What is missing or damaged costs no more than its time here."""
    total = 0.0
    for name in runs:
        try:
            seconds = number(
                read_object(folder / "runs" / pathlib.PurePath(name).name / "run.json").get("elapsed_seconds")
            )
        except LoadError:
            continue
        total += seconds if seconds > 0 else 0.0
    return total


def _load_run(folder: pathlib.Path, entry: dict, problems: list[str]) -> Run:
    seed = number(entry.get("seed"))
    run = Run(
        variant=str(entry.get("variant")),
        seed=int(seed) if math.isfinite(seed) else 0,
        folder=str(entry.get("folder") or ""),
        state=str(entry.get("state") or TO_DO),
    )
    place = folder / run.folder
    try:
        if (place / "run.json").exists():
            info = read_object(place / "run.json")
            run.error = str(info.get("error") or "")
            run.command = str(info.get("command") or "")
            run.commit = str(info.get("commit") or "")
            run.started = info.get("started")
            run.elapsed_seconds = number(info.get("elapsed_seconds"))
        if (place / "cluster.textproto").exists():
            run.config = _read_text(place / "cluster.textproto")
        # What has failed may have left nothing, or no more than a part.
        if run.state == FINISHED or (run.state in (FAILED, DIVERGED) and (place / "summary.json").exists()):
            run.summary = _read_summary(place / "summary.json")
        if run.state in (FINISHED, FAILED) and _has_diverged(run):
            run.state = DIVERGED
        if run.state == DIVERGED:
            run.diverged_at_step = _step_of_divergence(run)
            if run.diverged_at_step is None:  # Nor is the clock in older words the step.
                run.error = re.sub(r" at clock \d+", "", run.error)
            if (place / "metrics.jsonl").exists():
                run.records = _read_metrics(place / "metrics.jsonl", ended=False)
        if run.state == FINISHED:
            if "missed_clocks" not in run.summary and "staleness_clocks" in run.summary:
                problems.append(
                    f"{place / 'summary.json'}: an older slackline made it, without missed clocks, missed updates "
                    "and lead; run this run again to have them"
                )
            run.records = _read_metrics(place / "metrics.jsonl", ended=True)
            run.images = _read_images(place / "images", problems)
    except LoadError as error:
        problems.append(str(error))
        run.state, run.error, run.summary, run.records = DAMAGED, str(error), {}, []
    return run


# The job was at its end, whatever is to be said of its result.
FINISHED_CAUSES = ("COMPLETED", "STOP_RULE", "FINISHED_EARLY")


def _has_diverged(run: Run) -> bool:
    # What was not measured is left out of a summary.
    if run.state == FINISHED or run.summary.get("cause") in FINISHED_CAUSES:
        return any(not math.isfinite(number(run.summary.get(loss, 0))) for loss in LOSSES)
    if run.summary.get("cause") not in (None, "", "STOPPED"):
        return run.summary["cause"] in DIVERGED_CAUSES
    return DIVERGED_WORDS.search(f"{run.summary.get('reason')} {run.error}") is not None


def _step_of_divergence(run: Run) -> Optional[int]:
    step = number(run.summary.get("diverged_at_step"))
    if math.isfinite(step):
        return int(step)
    # Of a program that did not write it.
    match = re.search(r"\bat step (\d{1,18})\b", f"{run.summary.get('reason')} {run.error}")
    return int(match.group(1)) if match else None


def _read_summary(path: pathlib.Path) -> dict:
    """Only the shapes are checked: what is no number there is one unknown."""
    summary = read_object(path)
    for name in ("missed_clocks", "missed_updates", "lead"):
        _field(path, summary, name, dict)
        _field(path, summary, name + "_histogram", list)
    _field(path, summary, "workers_lost", list)
    for index, worker in enumerate(_field(path, summary, "worker", list)):
        rank = number(worker.get("rank")) if isinstance(worker, dict) else math.nan
        if not rank >= 0 or rank != int(rank):
            raise LoadError(f"{path}: worker[{index}] has no rank; run this run again")
    return summary


def _read_metrics(path: pathlib.Path, ended: bool) -> list[Record]:
    text = _read_text(path)
    if not ended:  # Up to the line that is being written.
        text = text[: text.rfind("\n") + 1]
    return [
        record_of(line, f"{path}:{line_number}")
        for line_number, line in enumerate(text.splitlines(), start=1)
    ]


def record_of(line: str, place: str) -> Record:
    """`place`: of the line, for LoadError."""
    try:
        data = json.loads(line)
        kind = data["kind"]
        if kind not in ("eval", "train"):
            raise ValueError(f"kind is '{kind}', it must be eval or train")
        step = int(data["step"])
        if not 0 <= step < 2**63:
            raise ValueError(f"step is {step}, it must be in [0, 2^63)")
        values = data.get("values", {})
        if not isinstance(values, dict):
            raise ValueError(f"values is a {type(values).__name__}, it must be a dict")
        return Record(
            kind=kind,
            rank=int(data.get("rank", 0)),
            step=step,
            epoch=number(data.get("epoch")),
            seconds=number(data.get("seconds")),
            loss=number(data.get("loss")),
            has_loss="loss" in data,
            accuracy=number(data.get("accuracy")),
            examples_per_second=number(data.get("examples_per_second")),
            values={name: number(value) for name, value in values.items()},
        )
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        reason = f"no field {error}" if isinstance(error, KeyError) else str(error)
        raise LoadError(f"{place}: {reason}; run this run again") from error


def _read_images(folder: pathlib.Path, problems: list[str]) -> list[Image]:
    """By name and step."""
    images = []
    for path in folder.glob("*/*.png"):
        try:
            images.append(_read_image(path))
        except LoadError as error:
            problems.append(str(error))
    return sorted(images, key=lambda image: (image.name, image.step))


def _read_image(path: pathlib.Path) -> Image:
    if re.fullmatch(r"[0-9]{1,18}", path.stem) is None:
        raise LoadError(f"{path}: its name is no step; move it elsewhere")
    try:
        png, written = path.read_bytes(), path.stat().st_mtime
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}") from error
    channels_of = {0: 1, 2: 3, 6: 4}  # Of color types.
    if len(png) < 29 or png[:8] != b"\x89PNG\r\n\x1a\n" or png[25] not in channels_of:
        raise LoadError(f"{path}: it is no PNG of grey or color; remove it")
    width, height = struct.unpack_from(">II", png, 16)
    return Image(path.parent.name, int(path.stem), written, height, width, channels_of[png[25]], png)


def _read_text(path: pathlib.Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise LoadError(f"{path}: {error.strerror}; run this run again") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"{path}: byte {error.start} is no UTF-8; run this run again") from error


def read_object(path: pathlib.Path) -> dict:
    """LoadError names the file and what is wrong with it."""
    try:
        data = json.loads(_read_text(path))
    except ValueError as error:
        raise LoadError(f"{path}: {error}; it must be JSON") from error
    if not isinstance(data, dict):
        raise LoadError(f"{path}: it holds a {type(data).__name__}, it must be a JSON object")
    return data


def _field(path: pathlib.Path, data: dict, name: str, kind: type) -> Any:
    """Empty if it is left out or null."""
    value = data.get(name)
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise LoadError(f"{path}: {name} is a {type(value).__name__}, it must be a {kind.__name__}")
    return value


def _text(value: Any) -> str:
    """Axis values are texts, as after the '=' of --set."""
    return f"{value:g}" if isinstance(value, float) else str(value)
