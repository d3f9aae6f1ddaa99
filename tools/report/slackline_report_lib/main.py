"""The command: reads the folder of an experiment and writes its report there."""

import argparse
import pathlib
import sys

from . import load, page, plots, results, tensorboard

DESCRIPTION = """\
Makes the report of an experiment from the folder that `slackline compare` wrote:

  report.html     the report, one file that needs no other
  data/           results.json, results.csv (per variant), runs.csv, metrics.csv
  plots/          every plot as .png and .svg
  tensorboard/    event files; tensorboard --logdir EXPERIMENT_DIR/tensorboard

Earlier reports in the folder are replaced. Runs that failed or are still to do
are named in the report.

Exit status: 0 done; 1 failed, or a run's files are damaged (the report of the
other runs is there); 2 wrong usage."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="slackline_report.py",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "experiment_dir",
        metavar="EXPERIMENT_DIR",
        type=pathlib.Path,
        help="folder with experiment.json and runs/",
    )
    options = parser.parse_args(arguments)
    try:
        experiment = load.load_experiment(options.experiment_dir)
    except load.LoadError as error:
        print(f"slackline_report: {error}", file=sys.stderr)
        return 1
    for problem in experiment.problems:
        print(f"slackline_report: {problem}", file=sys.stderr)
    try:
        report = _write(experiment)
    except OSError as error:
        print(
            f"slackline_report: cannot write {error.filename}: {error.strerror}; "
            "make room or make the folder writable",
            file=sys.stderr,
        )
        return 1
    print(report)
    return 1 if experiment.problems else 0


def _write(experiment: load.Experiment) -> pathlib.Path:
    of = results.compute(experiment)
    results.write(of, experiment.folder / "data")
    tensorboard.write_event_files(experiment, experiment.folder / "tensorboard")
    pictures = plots.draw_all(of, experiment.folder / "plots")
    report = experiment.folder / "report.html"
    results.write_text(report, page.html_of(of, pictures))
    return report
