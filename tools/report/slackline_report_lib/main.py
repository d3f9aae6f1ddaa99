"""The command: reads the folder of an experiment or of a run and writes its report there."""

import argparse
import importlib.util
import pathlib
import sys

from . import files, load, tensorboard

DESCRIPTION = """\
Makes the report of an experiment from the folder that `slackline compare` wrote:

  report.html     the report, one file that needs no other
  data/           results.json, results.csv (per variant), runs.csv, metrics.csv,
                  and tune.csv where values were searched
  plots/          every plot as .png and .svg; the .svg follow dark colours
  tensorboard/    event files; tensorboard --logdir DIR/tensorboard

In the folder of a single run, which `slackline run` wrote or is writing, it makes
tensorboard/ with the metrics and images that are there.

Earlier reports in the folder are replaced. Runs that diverged, failed or are
still to do are named in the report.

Exit status: 0 done; 1 failed, or a run's files are damaged (the report of all
else is there); 2 wrong usage."""

# Of the report of an experiment only.
NEEDED = ("matplotlib", "numpy", "scipy")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="slackline_report.py",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=pathlib.Path,
        help="folder with experiment.json and runs/, or that of a run",
    )
    folder = parser.parse_args(arguments).folder
    try:
        if load.is_run(folder):
            return _report_run(folder)
        return _report_experiment(folder)
    except load.LoadError as error:
        _complain(str(error))
    except OSError as error:
        _complain(f"cannot write {error.filename}: {error.strerror}; make room or make the folder writable")
    return 1


def _complain(text: str) -> None:
    print(f"slackline_report: {text}", file=sys.stderr)


def _report_run(folder: pathlib.Path) -> int:
    problems: list[str] = []
    run = load.load_run(folder, problems)
    for problem in problems:
        _complain(problem)
    place = folder / "tensorboard"
    tensorboard.write_event_file(run, place)
    print(place)
    return 1 if problems else 0


def _report_experiment(folder: pathlib.Path) -> int:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _complain(
            f"{sys.executable} has no module {' and no '.join(missing)}; "
            f"install them with: apt-get install {' '.join('python3-' + name for name in missing)}"
            f"  (or: {sys.executable} -m pip install {' '.join(missing)})"
        )
        return 1
    experiment = load.load_experiment(folder)
    for problem in experiment.problems:
        _complain(problem)
    print(_write(experiment))
    return 1 if experiment.problems else 0


def _write(experiment: load.Experiment) -> pathlib.Path:
    # Here, because the report of a run does without what these need.
    from . import page, plots, results

    of = results.compute(experiment)
    results.write(of, experiment.folder / "data")
    tensorboard.write_event_files(experiment, experiment.folder / "tensorboard")
    pictures = plots.draw_all(of, experiment.folder / "plots")
    report = experiment.folder / "report.html"
    files.write_text(report, page.html_of(of, pictures))
    return report
