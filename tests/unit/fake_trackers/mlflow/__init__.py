"""What slackline uses of MLflow, as recorded from MLflow 3.17: a stand-in that keeps runs
in one JSON file below a folder. track_test takes the real package where it is there."""

from . import entities, tracking  # noqa: F401
