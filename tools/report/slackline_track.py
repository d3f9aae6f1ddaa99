#!/usr/bin/env python3
"""Sends the records of a run, or of an experiment, to MLflow, Weights & Biases or TensorBoard.

Usage: slackline_track.py DIR --to mlflow|wandb|tensorboard[:PLACE]
"""

import os
import sys

from slackline_report_lib import track

if __name__ == "__main__":
    result = track.main(sys.argv[1:])
    if result.gave_up:
        # What its package does at the end of a process would hang, too.
        sys.stderr.flush()
        os._exit(result.code)
    sys.exit(result.code)
