"""Tests of `slackline track` on folders made up here.

MLflow is the real one where this Python has it, and else a stand-in, as wandb is
always (fake_trackers); TensorBoard's files are read by code of the tests.

Usage: track_test.py FOLDER_OF_SLACKLINE_TRACK [unittest's arguments]
"""

import argparse
import contextlib
import fcntl
import importlib.util
import io
import json
import os
import pathlib
import signal
import socket
import sys
import tempfile
import threading
import time
import unittest
import unittest.mock

from event_files import read_events

sys.path.insert(0, str(pathlib.Path(sys.argv.pop(1))))
FAKES = pathlib.Path(__file__).resolve().parent / "fake_trackers"
# Before what is installed, if that is not MLflow.
sys.path.insert(len(sys.path) if importlib.util.find_spec("mlflow") else 0, str(FAKES))
# MLflow tells its makers nothing of these tests.
os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", MLFLOW_ALLOW_FILE_STORE="true")

import mlflow.tracking  # noqa: E402
from slackline_report_lib import track, trackers  # noqa: E402

CONFIG = """# Written by `slackline run` from job.textproto: what was left out is filled in.
job: "small"
worker {
  host: "127.0.0.1"
  count: 2
}
worker {
  host: "127.0.0.1"
  count: 1
}
optimizer {
  momentum {
    learning_rate: 0.5
  }
}
"""


def train(rank, step, loss, seconds=None):
    return {
        "kind": "train", "rank": rank, "step": step, "epoch": step / 10, "loss": loss,
        "seconds": step * 1.0 if seconds is None else seconds, "examples_per_second": 100.0,
    }  # fmt: skip


def evaluation(step, accuracy):
    return {
        "kind": "eval", "rank": 0, "step": step, "epoch": step / 10, "seconds": step * 1.0,
        "loss": 0.25, "accuracy": accuracy, "values": {"spread": 2.5},
    }  # fmt: skip


SUMMARY = {
    "job": "small", "config_hash": "00ff", "state": "FINISHED", "cause": "COMPLETED", "about": [],
    "steps": 10, "ended_at": "2026-01-02T03:04:05+00:00", "test_accuracy": 0.75, "train_loss": None,
    "missed_clocks": {"p50": 1, "p99": 2, "max": 3}, "missed_clocks_histogram": [4, 5],
    "worker": [{"rank": 0, "wait_seconds": 1.5}, {"rank": 1, "wait_seconds": 2.5}],
    "program": [{"commit": "0123abcd", "servers": 1}], "model_sha256": "ab12", "stopped": "",
}  # fmt: skip


class TrackTest(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = pathlib.Path(place.name)
        self.patch(track, "JOIN_SECONDS", 60.0)  # However busy this machine is.
        for number in (signal.SIGINT, signal.SIGTERM):
            self.addCleanup(signal.signal, number, signal.getsignal(number))

    def run_folder(self, name="mine", records=(), summary=SUMMARY):
        folder = self.path / name
        folder.mkdir(parents=True)
        (folder / "cluster.textproto").write_text(CONFIG, encoding="utf-8")
        (folder / "runs.txt").write_text("a4999a0cd55892c5\nfolder 1\n", encoding="utf-8")
        (folder / "model.safetensors").write_bytes(b"model")
        self.append(folder, *records)
        if summary is not None:
            self.write(folder / "summary.json", summary)
        return folder

    def append(self, folder, *records):
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)

    def write(self, path, value):
        path.write_text(json.dumps(value), encoding="utf-8")

    def track(self, folder, *to, more=("--no-follow",), gives_up=False):
        """Exit code and what is on stderr. `gives_up`: a tracker hangs."""
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            result = track.main([str(folder), *(f"--to={one}" for one in to), *more])
        self.assertEqual(result.gave_up, gives_up, errors.getvalue())
        return result.code, errors.getvalue()

    def asked(self, folder):
        return argparse.Namespace(folder=folder, project=None, model=False, until_told=False)

    def follower(self, folder, to):
        """To be looked with, as while a run goes on."""
        return track._source(self.asked(folder), to, threading.Lock())

    def mlflow_runs(self, project="small"):
        client = mlflow.tracking.MlflowClient(tracking_uri=(self.path / "ml").as_uri())
        return client, client.search_runs([client.get_experiment_by_name(project).experiment_id])

    def history(self, name):
        client, (run,) = self.mlflow_runs()
        return [(of.step, of.value) for of in client.get_metric_history(run.info.run_id, name)]

    def events(self, folder):
        (file,) = folder.iterdir()
        found = read_events(file.read_bytes())
        self.assertEqual(found[0][3], b"brain.Event:2")
        return [(scalar[0].decode(), step, scalar[1]) for _, step, scalar, _ in found[1:]]

    def test_mlflow_has_the_whole_run_once(self):
        records = [
            *(train(rank, 5, 1.0 + rank) for rank in range(3)),
            evaluation(10, 0.75),
            train(0, 10, 0.5),
        ]
        folder = self.run_folder(records=records)
        for _ in range(2):
            self.assertEqual(self.track(folder, f"mlflow:{self.path}/ml", more=("--model",)), (0, ""))
        client, (run,) = self.mlflow_runs()
        self.assertEqual((run.info.run_name, run.info.status), ("mine", "FINISHED"))
        self.assertEqual(self.history("train/loss"), [(5, 2.0), (10, 0.5)])
        self.assertEqual(self.history("examples_per_second"), [(5, 300.0), (10, 100.0)])
        self.assertEqual(self.history("test/accuracy"), [(10, 0.75)])
        self.assertEqual(self.history("test/spread"), [(10, 2.5)])
        self.assertEqual(self.history("summary/missed_clocks.p99"), [(0, 2.0)])
        self.assertEqual(self.history("summary/worker.1.wait_seconds"), [(0, 2.5)])
        (first,) = client.get_metric_history(run.info.run_id, "test/accuracy")
        self.assertEqual(first.timestamp, int(((folder / "cluster.textproto").stat().st_mtime + 10) * 1000))
        self.assertEqual(run.data.params["optimizer.momentum.learning_rate"], "0.5")
        self.assertEqual((run.data.params["worker.count"], run.data.params["worker.1.count"]), ("2", "1"))
        tags = {
            key: run.data.tags[f"slackline.{key}"]
            for key in ("program.0.commit", "config_hash", "model_sha256")
        }
        self.assertEqual(
            tags, {"program.0.commit": "0123abcd", "config_hash": "00ff", "model_sha256": "ab12"}
        )
        files = sorted(of.path for of in client.list_artifacts(run.info.run_id))
        self.assertEqual(files, ["cluster.textproto", "model.safetensors", "summary.json"])

    def test_a_step_is_sent_once_all_workers_have_come_to_it(self):
        folder = self.run_folder(
            records=[train(0, 5, 1.0), train(1, 5, 2.0), train(0, 10, 1.0)], summary=None
        )
        follower = self.follower(folder, f"mlflow:{self.path}/ml")
        self.assertFalse(follower.look(False))
        self.assertEqual(self.history("train/loss"), [])
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write('{"kind": "train", "ra')  # A line that is being written.
        self.assertFalse(follower.look(False))
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write(
                'nk": 2, "step": 5, "epoch": 1, "seconds": 6, "loss": 3.0, "examples_per_second": 1}\n'
            )
        self.assertFalse(follower.look(False))
        self.assertEqual(self.history("train/loss"), [(5, 2.0)])
        # Workers 1 and 2 write no more.
        self.append(folder, train(0, 100, 0.5))
        self.assertFalse(follower.look(False))
        self.assertEqual(self.history("train/loss"), [(5, 2.0), (10, 1.0), (100, 0.5)])
        self.write(folder / "summary.json", SUMMARY)
        self.assertTrue(follower.look(False))
        self.assertEqual(self.mlflow_runs()[1][0].info.status, "FINISHED")

    def test_a_run_that_goes_on_from_a_checkpoint_goes_on_there(self):
        failed = {**SUMMARY, "state": "FAILED"}
        folder = self.run_folder(records=[evaluation(10, 0.5), evaluation(20, 0.6)], summary=failed)
        to = f"mlflow:{self.path}/ml"
        self.assertEqual(self.track(folder, to)[0], 0)
        self.assertEqual(self.mlflow_runs()[1][0].info.status, "FAILED")
        # Step 20 is done anew.
        (folder / "metrics.jsonl").unlink()
        self.append(folder, evaluation(10, 0.5), evaluation(20, 0.7), evaluation(30, 0.8))
        self.write(folder / "summary.json", {**SUMMARY, "ended_at": "2026-01-02T03:05:00+00:00"})
        self.assertEqual(self.track(folder, to)[0], 0)
        self.assertEqual(self.history("test/accuracy"), [(10, 0.5), (20, 0.6), (30, 0.8)])
        self.assertEqual(self.mlflow_runs()[1][0].info.status, "FINISHED")
        # Another run in the same folder is another one there.
        (folder / "runs.txt").write_text("0000000000000001\n", encoding="utf-8")
        self.assertEqual(self.track(folder, to)[0], 0)
        self.assertEqual(len(self.mlflow_runs()[1]), 2)

    def experiment(self):
        runs = [("bsp", 1, "finished"), ("asp", 1, "failed"), ("asp", 2, "to do")]
        for variant, seed, state in runs[:2]:
            place = self.run_folder(
                f"modes/runs/{variant}-{seed}",
                [evaluation(10, 0.5)],
                {**SUMMARY, "state": "FINISHED" if state == "finished" else "FAILED"},
            )
            self.write(place / "run.json", {"started": "2026-01-02T03:04:05Z"})
        folder = self.path / "modes"
        (folder / "experiment.textproto").write_text('name: "modes"\n', encoding="utf-8")
        self.write(folder / "experiment.json", {
            "name": "modes", "title": "T", "question": ["Q"], "baseline": "bsp", "commit": "0123abcd",
            "variants": [{"name": "bsp", "axes": {"mode": "bsp"}}, {"name": "asp", "axes": {"mode": "asp"}}],
            "runs": [{"variant": v, "seed": s, "folder": f"runs/{v}-{s}", "state": state} for v, s, state in runs],
        })  # fmt: skip
        return folder

    def test_an_experiment_is_a_parent_and_its_runs_are_children(self):
        folder = self.experiment()
        to = [f"mlflow:{self.path}/ml", f"tensorboard:{self.path}/tb"]
        self.assertEqual(self.track(folder, *to), (0, ""))
        runs = {run.info.run_name: run for run in self.mlflow_runs("modes")[1]}
        self.assertEqual(set(runs), {"modes", "bsp-1", "asp-1"})
        self.assertEqual(runs["modes"].info.status, "RUNNING")  # A run is to be made yet.
        for name, status in (("bsp-1", "FINISHED"), ("asp-1", "FAILED")):
            tags = runs[name].data.tags
            self.assertEqual(tags["mlflow.parentRunId"], runs["modes"].info.run_id)
            self.assertEqual((tags["slackline.variant"], tags["slackline.seed"]), (name[:3], "1"))
            self.assertEqual((tags["slackline.axis.mode"], runs[name].info.status), (name[:3], status))
            self.assertIn(("test/accuracy", 10, 0.5), self.events(self.path / "tb/modes" / name))
        state = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
        state["runs"].pop()
        self.write(folder / "experiment.json", state)
        self.assertEqual(self.track(folder, *to), (0, ""))
        runs = {run.info.run_name: run.info.status for run in self.mlflow_runs("modes")[1]}
        self.assertEqual(runs, {"modes": "FAILED", "bsp-1": "FINISHED", "asp-1": "FAILED"})

    def test_wandb_has_runs_of_a_group_offline(self):
        sys.modules.pop("wandb", None)
        sys.path.insert(0, str(FAKES))
        self.addCleanup(sys.path.remove, str(FAKES))
        self.assertEqual(
            self.track(self.experiment(), f"wandb:{self.path}/wb", more=("--no-follow", "--model")), (0, "")
        )
        runs = [
            json.loads(path.read_text(encoding="utf-8"))
            for path in self.path.glob("wb/wandb/offline-run-*/fake.json")
        ]
        by_name = {run["given"]["name"]: run for run in runs}
        self.assertEqual(set(by_name), {"modes", "bsp-1", "asp-1"})
        self.assertEqual({run["given"]["group"] for run in runs}, {"modes"})
        self.assertEqual(
            (by_name["modes"]["given"]["job_type"], by_name["bsp-1"]["given"]["job_type"]),
            ("experiment", "run"),
        )
        run = by_name["bsp-1"]
        self.assertEqual((run["given"]["mode"], run["given"]["project"]), ("offline", "modes"))
        self.assertEqual(run["given"]["config"]["optimizer.momentum.learning_rate"], 0.5)
        self.assertEqual(
            run["history"],
            [{"test/loss": 0.25, "test/accuracy": 0.5, "test/spread": 2.5, "step": 10, "seconds": 10.0}],
        )
        self.assertEqual(
            (run["summary"]["summary/missed_clocks.p50"], run["summary"]["slackline.model_sha256"]),
            (1.0, "ab12"),
        )
        self.assertEqual(
            run["artifacts"],
            {"records": ["cluster.textproto", "summary.json"], "model": ["model.safetensors"]},
        )
        self.assertEqual((run["exit_code"], by_name["asp-1"]["exit_code"]), (0, 1))

    def test_a_beginning_that_fails_half_way_leaves_one_run(self):
        folder = self.run_folder(records=[train(0, 5, 1.0)])
        to = f"mlflow:{self.path}/ml"
        with unittest.mock.patch.object(trackers.Mlflow, "describe", side_effect=OSError("no network")):
            self.assertEqual(self.track(folder, to)[0], 1)
            self.assertEqual(self.track(folder, to)[0], 1)
        self.assertEqual(self.track(folder, to), (0, ""))
        _, runs = self.mlflow_runs()
        self.assertEqual([run.info.status for run in runs], ["FINISHED"])

    def test_what_cannot_be_noted_is_not_begun(self):
        folder = self.run_folder(records=[train(0, 5, 1.0)])
        to = f"mlflow:{self.path}/ml"
        with unittest.mock.patch.object(track.files, "write_text", side_effect=PermissionError("read-only")):
            self.assertEqual(self.track(folder, to)[0], 1)
        self.assertEqual(self.track(folder, to), (0, ""))
        self.assertEqual(len(self.mlflow_runs()[1]), 1)

    def test_a_folder_without_numbers_of_runs_has_one_run(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)])
        (folder / "runs.txt").unlink()
        for _ in range(2):
            self.assertEqual(self.track(folder, f"mlflow:{self.path}/ml"), (0, ""))
        self.assertEqual(self.history("test/accuracy"), [(10, 0.5)])

    def test_two_at_a_time_are_refused(self):
        folder = self.run_folder(records=[train(0, 5, 1.0)])
        held = os.open(folder, os.O_RDONLY)
        self.addCleanup(os.close, held)
        fcntl.flock(held, fcntl.LOCK_EX)
        code, said = self.track(folder, "tensorboard")
        self.assertEqual(code, 1)
        self.assertIn("another slackline track", said)
        self.assertFalse((folder / "tensorboard").exists())

    def test_passwords_stay_out_of_texts(self):
        for text, clean in (
            ("mlflow:https://me:secret@host:5000/x", "mlflow:https://host:5000/x"),
            ("tensorboard:/a@b/c", "tensorboard:/a@b/c"),
            ("no way to https://u:p@ss@h:1, or https://h2", "no way to https://h:1, or https://h2"),
            ("https://u:p/ss@host/x", "https://host/x"),
            ("https://token@host", "https://host"),
            ("mysql://h/db?a=b&db_Password=x&token=y z", "mysql://h/db?a=b&db_Password=...&token=... z"),
            ("https://host/password=x", "https://host/password=x"),
        ):
            self.assertEqual(trackers.without_secrets(text), clean)

    def test_tensorboard_has_figures_and_the_config_as_text(self):
        folder = self.run_folder(records=[train(0, 5, 1.0), train(1, 5, 2.0), evaluation(10, 0.5)])
        for _ in range(2):
            self.assertEqual(self.track(folder, "tensorboard"), (0, ""))
        found = self.events(folder / "tensorboard")
        self.assertIn(("train/loss", 5, 1.5), found)
        self.assertEqual(len([1 for tag, _, _ in found if tag == "test/accuracy"]), 1)
        texts = {tag: value for tag, _, value in found if isinstance(value, bytes)}
        self.assertIn(b"    optimizer.momentum.learning_rate: 0.5\n", texts["config"])
        self.assertIn(b"    slackline.config_hash: 00ff\n", texts["end"])

    def test_a_place_has_runs_of_the_same_name_side_by_side(self):
        for parent in ("a", "b"):
            self.track(
                self.run_folder(f"{parent}/mine", [evaluation(10, 0.5)]), f"tensorboard:{self.path}/tb"
            )
        self.assertEqual(sorted(path.name for path in (self.path / "tb").iterdir()), ["mine", "mine-2"])

    def test_a_tracker_that_fails_is_named_once_and_the_others_have_all(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)])
        (self.path / "ml").write_text("no folder", encoding="utf-8")
        code, errors = self.track(folder, f"mlflow:{self.path}/ml", "tensorboard")
        self.assertEqual((code, errors.count("\n")), (1, 1), errors)
        self.assertTrue(errors.startswith(f"slackline_track: mlflow:{self.path}/ml: "), errors)
        self.assertIn(("test/accuracy", 10, 0.5), self.events(folder / "tensorboard"))
        # It is there again.
        (self.path / "ml").unlink()
        self.assertEqual(self.track(folder, f"mlflow:{self.path}/ml"), (0, ""))
        self.assertEqual(self.history("test/accuracy"), [(10, 0.5)])

    def patch(self, where, name, value):
        patched = unittest.mock.patch.object(where, name, value)
        patched.start()
        self.addCleanup(patched.stop)

    def hanging_mlflow(self):
        """Whatever is sent there waits until the test is over."""
        over = threading.Event()

        def begin(*_):
            over.wait()
            raise OSError("the test is over")

        def end():
            over.set()
            with contextlib.redirect_stderr(io.StringIO()):
                for thread in threading.enumerate():
                    if thread.name.startswith(track.THREAD_NAME):
                        thread.join()

        self.addCleanup(end)
        self.patch(trackers.Mlflow, "begin", begin)

    def test_a_tracker_that_hangs_holds_up_no_other(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)])
        self.hanging_mlflow()
        self.interrupt_once_it_has(track._Told, "wake")  # The other one has all.
        code, errors = self.track(folder, f"mlflow:{self.path}/ml", "tensorboard", gives_up=True)
        self.assertEqual(code, 1)
        self.assertIn(f"mlflow:{self.path}/ml: has not answered, and is not waited for", errors)
        self.assertEqual(errors.count("\n"), 1, errors)
        self.assertIn(("test/accuracy", 10, 0.5), self.events(folder / "tensorboard"))
        sent = json.loads((folder / "track.json").read_text(encoding="utf-8"))
        self.assertEqual(sent["tensorboard:"]["end"], SUMMARY["ended_at"])

    def test_a_tracker_that_hangs_is_named_when_the_run_is_over(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)])
        os.utime(folder / "cluster.textproto", (0, 0))
        self.hanging_mlflow()
        self.patch(track, "REST_SECONDS", 0.0)
        read, write = os.pipe()
        os.close(write)
        with os.fdopen(read) as at_its_end, unittest.mock.patch.object(sys, "stdin", at_its_end):
            code, errors = self.track(folder, f"mlflow:{self.path}/ml", more=("--until-told",), gives_up=True)
        self.assertEqual(code, 1)
        self.assertEqual(
            errors, f"slackline_track: mlflow:{self.path}/ml: has not answered, and is not waited for\n"
        )

    def test_a_tracker_that_hangs_is_named_once_each_time(self):
        way = track._Way(self.asked(self.path), "tensorboard", threading.Lock())

        def said():
            errors = io.StringIO()
            with contextlib.redirect_stderr(errors):
                way.say_if_it_hangs()
            return errors.getvalue()

        names_it = (
            f"slackline_track: tensorboard: has not answered for {track.HANGS_SECONDS:.0f} s; "
            "the other trackers do not wait for it\n"
        )
        self.assertEqual(said(), "")
        way._looks_since = time.monotonic()
        self.assertEqual(said(), "")
        for _ in range(2):
            way._looks_since = time.monotonic() - track.HANGS_SECONDS
            self.assertEqual((said(), said()), (names_it, ""))
            way._looks_since = None  # It has answered.
            self.assertEqual(said(), "")

    def test_a_tracker_that_hangs_does_not_hold_up_the_end_of_a_lost_run(self):
        folder = self.run_whose_coordinator_is_gone(None)
        self.hanging_mlflow()
        self.patch(track, "REST_SECONDS", 0.0)
        code, errors = self.track(folder, f"mlflow:{self.path}/ml", more=(), gives_up=True)
        self.assertEqual(code, 1)
        self.assertIn("and the following ends\n", errors)
        self.assertTrue(errors.endswith("ml: has not answered, and is not waited for\n"), errors)

    def test_a_second_interrupt_counts_as_soon_as_the_first_one_has_been_seen(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)])
        self.hanging_mlflow()
        # Between the wish to end, here --no-follow, and the waiting.
        self.interrupt_once_it_has(track._Way, "begin")
        code, errors = self.track(folder, f"mlflow:{self.path}/ml", gives_up=True)
        self.assertEqual(code, 1)
        self.assertTrue(errors.endswith("ml: has not answered, and is not waited for\n"), errors)

    def test_the_thread_of_a_tracker_that_has_ended_is_waited_for(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)])
        wake, join, is_joined = track._Told.wake, track._Way.join, threading.Event()

        def wake_and_go_on(told):
            wake(told)
            is_joined.wait()

        def say_and_join(way, seconds):
            is_joined.set()
            join(way, seconds)

        self.patch(track._Told, "wake", wake_and_go_on)
        self.patch(track._Way, "join", say_and_join)
        self.assertEqual(self.track(folder, "tensorboard"), (0, ""))

    def test_a_package_that_ends_its_thread_has_failed(self):
        for number, error in enumerate((SystemExit(3), KeyboardInterrupt())):
            folder = self.run_folder(f"mine{number}", [evaluation(10, 0.5)])
            with unittest.mock.patch.object(trackers.Mlflow, "begin", side_effect=error):
                code, errors = self.track(folder, f"mlflow:{self.path}/ml", "tensorboard")
            self.assertEqual((code, errors.count("\n")), (1, 1), errors)
            self.assertIn(f"ml: {type(error).__name__}: ", errors)
            self.assertIn(("test/accuracy", 10, 0.5), self.events(folder / "tensorboard"))

    def test_a_tracker_is_there_once(self):
        code, errors = self.track(self.run_folder(), "tensorboard", "tensorboard")
        self.assertEqual(code, 2)
        self.assertIn("--to tensorboard is there more than once", errors)
        here = pathlib.Path.cwd()
        self.patch(os, "environ", {})
        for one, other in (
            ("mlflow", "mlflow:mlruns"),
            ("mlflow:ml", f"mlflow:{here}/ml"),
            ("tensorboard:tb", "tensorboard:./tb"),
            ("wandb:wb", "wandb:wb/"),
        ):
            code, errors = self.track(self.path, one, other, more=("--check=names",))
            self.assertEqual((code, f"--to {other} and {one} are the same" in errors), (2, True), errors)
        several = ("mlflow", "mlflow:ml", "wandb", "wandb:ml", "tensorboard", "tensorboard:ml")
        self.assertEqual(self.track(self.path, *several, more=("--check=names",)), (0, ""))

    def interrupt_once_it_has(self, kind, name):
        """A Ctrl-C when that has been called the first time."""
        plain, calls = getattr(kind, name), []

        def then_interrupt(*arguments):
            result = plain(*arguments)
            if not calls:
                os.kill(os.getpid(), signal.SIGINT)
            calls.append(1)
            return result

        self.patch(kind, name, then_interrupt)

    def test_a_following_that_ends_before_the_run_leaves_it_to_be_gone_on_with(self):
        sys.modules.pop("wandb", None)
        sys.path.insert(0, str(FAKES))
        self.addCleanup(sys.path.remove, str(FAKES))
        folder = self.run_folder(records=[evaluation(10, 0.5)], summary=None)
        self.interrupt_once_it_has(trackers.Wandb, "log")
        self.assertEqual(self.track(folder, f"wandb:{self.path}/wb", more=()), (0, ""))
        (kept,) = self.path.glob("wb/wandb/offline-run-*/fake.json")
        run = json.loads(kept.read_text(encoding="utf-8"))
        self.assertEqual((run["preempting"], run["exit_code"]), (True, 1))
        # The rest is sent to the same run.
        kept.unlink()
        self.write(folder / "summary.json", SUMMARY)
        self.assertEqual(self.track(folder, f"wandb:{self.path}/wb", more=()), (0, ""))
        (kept,) = self.path.glob("wb/wandb/offline-run-*/fake.json")
        again = json.loads(kept.read_text(encoding="utf-8"))
        self.assertEqual((again["given"]["id"], again["exit_code"]), (kept.parent.name.split("-")[-1], 0))
        self.assertNotIn("preempting", again)

    def run_whose_coordinator_is_gone(self, summary):
        folder = self.run_folder(records=[evaluation(10, 0.5)], summary=summary)
        (folder / "coordinator.state.lock").write_text(
            f"process {self.ended_process()} of host {socket.gethostname()}", encoding="utf-8"
        )
        self.patch(track, "QUIET_SECONDS", 0.0)
        self.patch(track, "LOOK_SECONDS", 0.01)
        return folder

    def ended_process(self):
        ended = os.fork()
        if ended == 0:
            os._exit(0)
        os.waitpid(ended, 0)
        return ended

    def test_a_slow_tracker_of_a_finished_run_is_no_silence(self):
        folder = self.run_whose_coordinator_is_gone(SUMMARY)
        looked, look, begin = threading.Semaphore(0), track._Silence.look, trackers.Mlflow.begin

        def say_that_it_looks(silence):
            found = look(silence)
            looked.release()
            return found

        def begin_when_it_has_looked(*arguments):
            for _ in range(2):
                looked.acquire()
            return begin(*arguments)

        self.patch(track._Silence, "look", say_that_it_looks)
        self.patch(trackers.Mlflow, "begin", begin_when_it_has_looked)
        self.assertEqual(self.track(folder, f"mlflow:{self.path}/ml", more=()), (0, ""))
        self.assertEqual(self.mlflow_runs()[1][0].info.status, "FINISHED")

    def test_a_run_that_ends_when_it_is_given_up_has_its_own_end(self):
        folder = self.run_whose_coordinator_is_gone(None)
        gone = track._coordinator_gone

        def ends_now(of):
            self.write(folder / "summary.json", SUMMARY)
            return gone(of)

        self.patch(track, "_coordinator_gone", ends_now)
        code, errors = self.track(folder, f"mlflow:{self.path}/ml", more=())
        self.assertEqual(code, 0, errors)
        self.assertEqual(self.mlflow_runs()[1][0].info.status, "FINISHED")

    def test_an_experiment_without_a_run_to_do_is_over(self):
        folder = self.experiment()
        self.assertFalse(track._is_over(folder))
        state = json.loads((folder / "experiment.json").read_text(encoding="utf-8"))
        state["runs"].pop()
        self.write(folder / "experiment.json", state)
        self.assertTrue(track._is_over(folder))
        (folder / "experiment.json").write_text("{", encoding="utf-8")
        self.assertFalse(track._is_over(folder))

    def test_silence_is_named_once(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)], summary=None)
        self.patch(track, "QUIET_SECONDS", 0.0)
        silence, errors = track._Silence(folder), io.StringIO()
        with contextlib.redirect_stderr(errors):
            self.assertEqual([silence.look() for _ in range(3)], [False] * 3)
            self.append(folder, evaluation(20, 0.5))
            self.assertFalse(silence.look())
        said = errors.getvalue()
        self.assertEqual(said.count("nothing has been written for"), 2, said)
        self.assertIn("Ctrl-C ends the following", said)

    def test_a_run_whose_coordinator_is_gone_ends_with_an_unknown_state(self):
        folder, ended = self.run_whose_coordinator_is_gone(None), self.ended_process()
        lock = folder / "coordinator.state.lock"
        for holder, gone in (
            (f"process {ended} of host somewhere.else", False),
            (f"process {os.getpid()} of host {socket.gethostname()}", False),
            ("no process", False),
            (f"process {10**30} of host {socket.gethostname()}", False),
            (f"process {ended} of host {socket.gethostname()}", True),
        ):
            lock.write_text(holder, encoding="utf-8")
            self.assertEqual(bool(track._coordinator_gone(folder)), gone, holder)
        # One in another container has no number here.
        with open(lock, "rb") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.assertEqual(track._coordinator_gone(folder), "")
        # Of the run before in this folder.
        written = lock.stat().st_mtime_ns
        os.utime(folder / "cluster.textproto", ns=(written + 1, written + 1))
        self.assertEqual(track._coordinator_gone(folder), "")
        os.utime(folder / "cluster.textproto", ns=(written, written))
        code, errors = self.track(folder, f"mlflow:{self.path}/ml", more=())
        self.assertEqual(code, 1)
        self.assertIn("its state is unknown, and the following ends", errors)
        _, (run,) = self.mlflow_runs()
        self.assertEqual((run.data.tags["slackline.state"], run.info.status), ("unknown", "FAILED"))
        self.assertEqual(self.history("test/accuracy"), [(10, 0.5)])
        # It has gone on after all, and is another one then.
        self.write(folder / "summary.json", SUMMARY)
        self.assertEqual(self.track(folder, f"mlflow:{self.path}/ml"), (0, ""))
        _, (run,) = self.mlflow_runs()
        self.assertEqual((run.data.tags["slackline.state"], run.info.status), ("FINISHED", "FINISHED"))

    def test_what_could_not_be_sent_is_sent_when_the_tracker_is_back(self):
        folder = self.run_folder(records=[train(0, 5, 1.0), train(1, 5, 2.0), evaluation(10, 0.5)])
        way = track._Way(self.asked(folder), f"mlflow:{self.path}/ml", threading.Lock())
        log = trackers.Mlflow.log
        self.addCleanup(setattr, trackers.Mlflow, "log", log)
        errors, calls = io.StringIO(), []

        def fail(*_):
            calls.append(1)
            raise ConnectionError("no way there")

        trackers.Mlflow.log = fail
        with contextlib.redirect_stderr(errors):
            for _ in range(3):
                self.assertFalse(way.look(False))
                way._retry_at = 0.0
        self.assertEqual((len(calls), errors.getvalue().count("ConnectionError: no way there")), (3, 1))
        trackers.Mlflow.log = log
        self.assertTrue(way.look(False))
        self.assertEqual(self.history("train/loss"), [(5, 1.5)])
        self.assertEqual(self.history("test/accuracy"), [(10, 0.5)])
        self.assertEqual(way.failed, "")

    def test_a_damaged_file_is_named(self):
        folder = self.run_folder(records=[evaluation(10, 0.5)])
        with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
            file.write("{}\n")
        code, errors = self.track(folder, "tensorboard")
        self.assertEqual(code, 1)
        self.assertIn("metrics.jsonl:2: no field 'kind'", errors)

    def test_what_cannot_be_asked_for_is_refused(self):
        for to, text in (("mlflo", "'mlflo' is no tracker"), ("mlflow:", "no place after the colon")):
            code, errors = self.track(self.run_folder(to.strip(":")), to)
            self.assertEqual(code, 2)
            self.assertIn(text, errors)
        code, errors = self.track(self.path, "tensorboard")
        self.assertEqual(code, 1)
        self.assertIn("has no metrics.jsonl and no experiment.json", errors)

    def test_a_missing_package_is_named_with_the_command_that_installs_it(self):
        found = importlib.util.find_spec
        self.addCleanup(setattr, importlib.util, "find_spec", found)
        importlib.util.find_spec = lambda name: None
        for package, pip in (("mlflow", "mlflow-skinny"), ("wandb", "wandb")):
            # Nobody sends from here.
            self.assertEqual(self.track(self.path, package, more=("--check=names",)), (0, ""))
            code, errors = self.track(self.path, package, more=("--check=packages",))
            self.assertEqual(code, 2)
            self.assertIn(
                f"has no package {package}; install it with: {sys.executable} -m pip install {pip}\n", errors
            )
        self.assertEqual(self.track(self.path, "tensorboard", more=("--check=packages",)), (0, ""))
        self.assertEqual(set(trackers.PIP_PACKAGES), {"mlflow", "wandb", "tensorboard"})


if __name__ == "__main__":
    unittest.main()
