#!/usr/bin/env python3
"""Makes the report of an experiment: tables, plots, one HTML page, TensorBoard files.

Usage: slackline_report.py EXPERIMENT_DIR
"""

import importlib.util
import sys

NEEDED = ("matplotlib", "numpy", "scipy")


def missing_modules() -> list[str]:
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


def run() -> int:
    missing = missing_modules()
    # Help and wrong usage need no plots.
    if missing and not {"-h", "--help"}.intersection(sys.argv[1:]):
        print(
            f"slackline_report: {sys.executable} has no module {' and no '.join(missing)}; "
            f"install them with: apt-get install {' '.join('python3-' + name for name in missing)}"
            f"  (or: {sys.executable} -m pip install {' '.join(missing)})",
            file=sys.stderr,
        )
        return 1
    from slackline_report_lib import main

    return main.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(run())
