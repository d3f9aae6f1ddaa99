#!/usr/bin/env python3
"""Sends the records of a run, or of an experiment, to MLflow, Weights & Biases or TensorBoard.

Usage: slackline_track.py DIR --to mlflow|wandb|tensorboard[:PLACE]
"""

import sys

from slackline_report_lib import track

if __name__ == "__main__":
    sys.exit(track.main(sys.argv[1:]))
