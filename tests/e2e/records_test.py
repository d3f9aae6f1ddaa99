"""What runs leave is what docs/manual/records.md says, field by field, in both directions.

Method: a job that changes its mode, has a shard moved, takes checkpoints and has
copies and two trackers, one of which fails; one that diverges; and an experiment with a search. Whoever
adds a field adds it to the page; whoever takes one away takes it from there.

Usage: records_test.py FOLDER_OF_PROGRAMS [unittest's arguments]
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import small_job

BIN = pathlib.Path(sys.argv.pop(1))
PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs/manual/records.md"


def documented():
    """Of each file: whether each field is always there, by its path."""
    files, fields = {}, None
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"### (\S+)", line):
            fields = files.setdefault(heading[1], {})
        elif row := re.match(r"\| `([^`]+)` \|[^|]*\| ([^|]*) \|", line):
            if fields is not None:
                assert row[1] not in fields, row[1]
                fields[row[1]] = row[2] == "always"
    return {name: fields for name, fields in files.items() if fields}


def paths(value, path=""):
    """Of all leaves: "worker[].rank"."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield f"{path}[]"
        for inner in value:
            if isinstance(inner, (dict, list)):
                yield from paths(inner, f"{path}[]")
    else:
        yield path


def matches(field, path):
    return re.fullmatch(re.escape(field).replace(r"\*", r".+"), path) is not None


def is_list_alone(path, fields):
    """An empty list of objects, or one whose objects are documented."""
    return path.endswith("[]") and any(field.startswith(path + ".") for field in fields)


class RecordsTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        place = tempfile.TemporaryDirectory()
        cls.addClassCleanup(place.cleanup)
        cls.path = pathlib.Path(place.name)
        cls.full_run()
        small_job.done(
            small_job.command(
                BIN, small_job.write(cls.path, rate=1e30, more="track { tensorboard {} }"), cls.path / "diverged"
            ),
            code=1,
        )
        cls.experiment()

    @classmethod
    def full_run(cls):
        config = small_job.write(
            cls.path,
            epochs=1000,  # It is stopped.
            step_ms=20,
            more="""replicas: 1
            checkpoint { every_seconds: 0.5 best_by: LOSS }
            sync { phase { bsp {} until_epoch: 1 } phase { ssp { staleness: 2 } } }
            track { tensorboard { folder: "unused" } }""",
        )
        out = cls.path / "full"
        to = ["--track=tensorboard", f"--track=tensorboard:{config}/no-folder"]
        command = small_job.command(BIN, config, out, "--set=train.trace=true", *to)
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

        cls.addClassCleanup(run.kill)

        def wait_for(name):
            while run.poll() is None and not any(path.stat().st_size for path in out.glob(name)):
                time.sleep(0.02)

        wait_for("checkpoints/*/manifest.json")
        small_job.done([str(BIN / "slackline"), "move", str(out), "0", "--to", "1"])
        wait_for("checkpoints/best.json")
        wait_for("modes.jsonl")
        small_job.done([str(BIN / "slackline"), "stop", str(out)])
        output, _ = run.communicate(timeout=120)
        assert run.returncode == 0, output
        cls.said = output

    @classmethod
    def experiment(cls):
        base = small_job.write(cls.path, epochs=1, more="track { tensorboard {} }")
        small_job.done([
            str(BIN / "slackline"), "ablate", str(base), "--over=mode=bsp", "--tune=rate_factor=0.5,1", "--seeds=1",
            "--target-loss=100", f"--data-dir={cls.path}", f"--out={cls.path / 'modes'}", "--no-report",
        ])  # fmt: skip

    def records_of(self, name):
        """All records of files with that name, each with its place."""
        name = name.replace("-N.", "-*.").split("/")[-1]
        for path in sorted(self.path.rglob(name)):
            text = path.read_text(encoding="utf-8")
            for number, line in enumerate(text.splitlines() if name.endswith("l") else [text], start=1):
                yield f"{path.relative_to(self.path)}:{number}", json.loads(line)

    def test_every_field_is_documented_and_every_documented_field_is_there(self):
        schema = documented()
        self.assertEqual(len(schema), 9)
        for name, fields in schema.items():
            found, seen = 0, set()
            for place, record in self.records_of(name):
                found += 1
                here = set(paths(record))
                for path in here:
                    known = {field for field in fields if matches(field, path)}
                    self.assertTrue(
                        known or is_list_alone(path, fields), f"{place}: {path} is not in {PAGE.name}"
                    )
                    seen |= known
                for field in (field for field, always in fields.items() if always):
                    parent = field.rpartition("[].")[0]
                    if parent and not any(path.startswith(parent + "[].") for path in here):
                        continue  # An empty list.
                    self.assertTrue(
                        any(matches(field, path) for path in here), f"{place}: {field} is not there"
                    )
            self.assertGreater(found, 0, f"no run has left {name}")
            unseen = {field for field, always in fields.items() if always} - seen
            self.assertEqual(unseen, set(), f"{name}: no run has left these")

    def test_fields_under_a_condition_are_there_when_it_holds(self):
        def seen(folder, name):
            return {
                path
                for place, record in self.records_of(name)
                if place.startswith(folder)
                for path in paths(record)
            }

        full = seen("full/", "summary.json")
        fields = documented()["summary.json"]
        for condition in ("with replicas", "if there is one", "with `best_by`"):
            pattern = re.compile(rf"\| `([^`]+)` \|[^|]*\| {re.escape(condition)} \|")
            named = set(pattern.findall(PAGE.read_text(encoding="utf-8"))) & fields.keys()
            self.assertTrue(named and named <= full, f"{condition}: {named - full}")
        self.assertIn("diverged_at_step", seen("diverged/", "summary.json"))
        self.assertIn("tune.variants[].chosen.rate_factor", seen("modes/", "experiment.json"))
        self.assertTrue(
            {"tensorboard:.train", "tensorboard:.eval", "tensorboard:.end"} <= seen("full/", "track.json")
        )

    def test_every_file_of_a_run_is_documented(self):
        text = PAGE.read_text(encoding="utf-8").split("## The files of a run")[1].split("### ")[0]
        rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
        known = {
            re.sub(r"N\b", "*", name).split("/")[0] for row in rows for name in re.findall(r"`([^`]+)`", row)
        }
        for folder in ("full", "diverged"):
            for path in (self.path / folder).iterdir():
                self.assertTrue(
                    any(path.match(name) for name in known | {"tensorboard"}),
                    f"{folder}/{path.name} is not documented",
                )

    def test_trackers_have_what_the_records_have(self):
        # Read by track_test; the run was not harmed by the one that has failed.
        self.assertEqual(
            self.said.count("warning: not all records have been sent: slackline_track: tensorboard:"),
            1,
            self.said,
        )
        self.assertIn("\nto send them: slackline track ", self.said)
        (events,) = (self.path / "full/tensorboard").iterdir()
        for name in (
            b"train/loss",
            b"test/loss",
            b"summary/missed_clocks.p99",
            b"summary/worker.1.wait_seconds",
        ):
            self.assertIn(name, events.read_bytes())
        runs = [path.name for path in (self.path / "modes/runs").glob("bsp-seed1-*")]
        self.assertEqual(len(runs), 1)
        self.assertTrue((self.path / "modes/tensorboard" / runs[0]).is_dir())
        # As the config says, unless --track says something else.
        self.assertTrue((self.path / "diverged/tensorboard").is_dir())
        self.assertFalse(pathlib.Path("unused").exists())
        self.assertNotIn("track {", (self.path / "modes/runs" / runs[0] / "cluster.textproto").read_text("utf-8"))

    def test_trackers_of_a_config_are_refused_for_kubernetes(self):
        config = small_job.write(self.path, more="track { tensorboard {} }")
        said = small_job.done([str(BIN / "slackline"), "run", str(config), "--on=kubernetes", "--print"], code=2)
        self.assertIn("slackline run: track: the files of a run on Kubernetes are there and not here", said)

    def test_a_dry_run_needs_right_trackers_and_not_their_packages(self):
        config = small_job.write(self.path)
        command = small_job.command(BIN, config, self.path / "dry", "--dry-run")
        small_job.done([*command, "--track=wandb"])  # Which is not here, mostly.
        self.assertIn("'wand' is no tracker", small_job.done([*command, "--track=wand"], code=2))

    def test_addresses_with_secrets_are_refused_before_anything_is_kept(self):
        config, to = small_job.write(self.path), "mlflow:https://me:hidden@host"
        for command in (
            ["run", str(config), "--print", "--on=slurm", f"--track={to}"],
            ["compare", str(config), "--dry-run", f"--track={to}"],
            ["track", str(self.path / "full"), f"--to={to}"],
        ):
            said = small_job.done([str(BIN / "slackline"), *command], code=2)
            self.assertIn("MLFLOW_TRACKING_PASSWORD", said)
            self.assertNotIn("hidden", said)


if __name__ == "__main__":
    unittest.main()
