"""Tests of the report of an experiment or a run, on folders made up here.

Usage: report_test.py FOLDER_OF_SLACKLINE_REPORT [unittest's arguments]
"""

import contextlib
import csv
import html.parser
import io
import json
import math
import pathlib
import random
import re
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

from event_files import read_events

SCRIPT_FOLDER = pathlib.Path(sys.argv.pop(1))
sys.path.insert(0, str(SCRIPT_FOLDER))
try:
    import scipy.stats
    from slackline_report_lib import (
        curves,
        layout,
        load,
        main,
        plots,
        results,
        sentences,
        statistics,
        tensorboard,
        words,
    )
except ModuleNotFoundError as error:
    # Said aloud; CMake counts it as skipped where the module was missing before.
    print(f"report_test: skipped, as there is no module {error.name}")
    sys.exit(0)


class Statistics(unittest.TestCase):
    def test_an_interval_is_students(self):
        found = statistics.mean_with_interval([1.0, 2.0, 3.0])
        self.assertEqual((found.count, found.mean, found.standard_deviation), (3, 2.0, 1.0))
        # 4.302653 is the table's value for 2 degrees of freedom.
        self.assertAlmostEqual(found.high - found.mean, 4.302653 / math.sqrt(3), places=5)
        self.assertAlmostEqual(found.mean - found.low, 4.302653 / math.sqrt(3), places=5)

    def test_one_value_has_no_interval(self):
        found = statistics.mean_with_interval([0.5])
        self.assertEqual((found.mean, found.standard_deviation, found.low), (0.5, None, None))
        self.assertIsNone(statistics.mean_with_interval([]))

    def test_the_same_seeds_are_compared_in_pairs(self):
        found = statistics.compare({1: 1.1, 2: 5.2, 3: 9.3}, {1: 1.0, 2: 5.0, 3: 9.0})
        self.assertEqual(found.test, "paired t")
        self.assertAlmostEqual(found.difference, 0.2)
        # With 2 degrees of freedom: P(|T| > t) = 1 - t / sqrt(2 + t^2).
        t = 0.2 / (0.1 / math.sqrt(3))
        self.assertAlmostEqual(found.p_value, 1 - t / math.sqrt(2 + t * t))
        self.assertAlmostEqual(found.high - 0.2, 4.302653 * 0.1 / math.sqrt(3), places=5)

    def test_other_seeds_are_compared_by_welch(self):
        a, b = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0]
        found = statistics.compare(dict(enumerate(a)), dict(enumerate(b, start=7)))
        self.assertEqual(found.test, "Welch")
        self.assertAlmostEqual(found.difference, -1.5)
        self.assertAlmostEqual(found.p_value, scipy.stats.ttest_ind(a, b, equal_var=False).pvalue)
        # Variances 5/3 of 4 and 4 of 3: degrees 3.2347, error sqrt(7/4).
        half = scipy.stats.t.ppf(0.975, 3.0625 / ((5 / 12) ** 2 / 3 + (4 / 3) ** 2 / 2)) * math.sqrt(1.75)
        self.assertAlmostEqual(found.high - found.difference, half)

    def test_without_spread_or_with_fewer_than_three_seeds_there_is_no_test(self):
        for a, b in (
            ({1: 2.0}, {1: 1.0}),
            ({1: 2.0, 2: 2.5}, {1: 1.0, 2: 1.9}),
            ({1: 2.0, 2: 2.5}, {3: 1.0, 4: 1.1}),
        ):
            found = statistics.compare(a, b)
            self.assertEqual((found.low, found.p_value), (None, None))
            self.assertEqual(found.test, "fewer than 3 seeds: no test")
            self.assertIsNone(statistics.detectable(found, 1))
        self.assertIsNone(statistics.mean_with_interval([1.0, 2.0]).low)
        values = {1: 0.97, 2: 0.98, 3: 0.975}
        shifted = {seed: value - 0.01 for seed, value in values.items()}
        self.assertIsNone(statistics.compare(values, shifted).p_value)
        equal = statistics.compare(values, dict(values))
        self.assertEqual((equal.difference, equal.p_value), (0.0, 1.0))
        self.assertIsNone(statistics.compare({}, {1: 1.0}))

    def test_a_detectable_difference_is_found_four_times_in_five(self):
        found = statistics.compare({1: 2.0, 2: 2.5, 3: 2.2}, {1: 1.9, 2: 2.3, 3: 2.3})
        # Differences 0.1, 0.2, -0.1: error 0.0882 with 2 degrees, whose quantiles are 4.3027 and 1.0607.
        self.assertAlmostEqual(statistics.detectable(found, 1), 0.08819 * (4.3027 + 1.0607), places=4)
        self.assertGreater(statistics.detectable(found, 3), statistics.detectable(found, 1))
        # In experiments where that is the true difference, of a known spread.
        draw, trials, times = random.Random(1), 2000, 0
        error = 1 / math.sqrt(10)
        true = statistics.detectable(statistics.Difference(0, 0, 0, 1, "", error, 9), 1)
        for _ in range(trials):
            values = {seed: draw.gauss(true, 1) for seed in range(10)}
            times += statistics.compare(values, dict.fromkeys(values, 0.0)).p_value <= 0.05
        self.assertTrue(0.76 < times / trials < 0.86, times / trials)

    def test_holms_correction(self):
        for found, expected in zip(statistics.holm([0.01, 0.04, 0.03, 0.9]), [0.04, 0.09, 0.09, 0.9]):
            self.assertAlmostEqual(found, expected)
        self.assertEqual(statistics.holm([]), [])

    def test_percentiles_of_a_histogram(self):
        self.assertEqual(statistics.histogram_percentile([5, 4, 1], 0.5), 0)
        self.assertEqual(statistics.histogram_percentile([5, 4, 1], 0.9), 1)
        self.assertEqual(statistics.histogram_percentile([5, 4, 1], 0.99), 2)
        self.assertIsNone(statistics.histogram_percentile([0, 0], 0.5))


# ---- Folders of experiments


def evaluation(epoch, accuracy, loss=0.5, seconds=None):
    return {
        "kind": "eval", "rank": 0, "step": int(10 * epoch), "epoch": float(epoch),
        "seconds": 2.0 * epoch if seconds is None else seconds, "loss": loss, "accuracy": accuracy,
        "values": {"spread": 2.5},
    }  # fmt: skip


def training(rank, step, loss, seconds):
    return {
        "kind": "train", "rank": rank, "step": step, "epoch": step / 10, "seconds": seconds,
        "loss": loss, "examples_per_second": 100.0,
        "values": {"norm": float(rank)},
    }  # fmt: skip


def summary(accuracy, wall_seconds=8.0, **more):
    return {
        "steps": 40, "wall_seconds": wall_seconds, "examples_per_second": 500.0, "train_loss": 0.1,
        "test_loss": 0.2, "test_accuracy": accuracy, "data": "made up: 1000 training and 100 test examples",
        "bytes_pushed": 4000000, "bytes_pulled": 8000000,
        "missed_clocks": {"p50": 0, "p99": 2, "max": 3}, "missed_clocks_histogram": [50, 30, 15, 5],
        "missed_updates": {"p50": 1, "p99": 3, "max": 3}, "missed_updates_histogram": [10, 60, 20, 10],
        "lead": {"p50": 0, "p99": 1, "max": 1}, "lead_histogram": [60, 40],
        "worker": [
            {"rank": 1, "compute_seconds": 4.0, "wait_seconds": 4.0},
            {"rank": 0, "compute_seconds": 6.0, "wait_seconds": 2.0},
        ],
        **more,
    }  # fmt: skip


class Folder:
    """Of an experiment, in a temporary place."""

    def __init__(self, test: unittest.TestCase):
        place = tempfile.TemporaryDirectory()
        test.addCleanup(place.cleanup)
        self.path = pathlib.Path(place.name)
        self.experiment = {
            "name": "made-up", "title": "Made <up> & small", "question": ["Does <b>it</b> work?"],
            "variants": [], "runs": [], "command": "slackline compare made-up.textproto",
            "commit": "0123abcd", "machine": {"cpu": "a & b", "cores": 2},
        }  # fmt: skip

    def variant(self, name, **more):
        self.experiment["variants"].append({"name": name, "mode": "bsp", "set": [], "replay": "", **more})

    def run(
        self, variant, seed, accuracies=(), state="finished", error="", elapsed_seconds=10.0, **summary_fields
    ):
        """With a summary if there are accuracies."""
        folder = f"runs/{variant}-{seed}".replace(":", "-")
        self.experiment["runs"].append({"variant": variant, "seed": seed, "folder": folder, "state": state})
        if state == "to do":
            return self.path / folder
        (self.path / folder).mkdir(parents=True)
        self._json(folder + "/run.json", {
            "variant": variant, "seed": seed, "state": state, "error": error, "commit": "0123abcd",
            "started": "2026-01-02T03:04:05Z", "command": f"slackline run --set train.seed={seed}",
            "elapsed_seconds": elapsed_seconds,
        })  # fmt: skip
        if accuracies:
            records = [evaluation(i + 1, accuracy) for i, accuracy in enumerate(accuracies)]
            records += [training(rank, 10, 0.5 + rank, 2.0 + rank) for rank in (0, 1)]
            lines = "".join(json.dumps(record) + "\n" for record in records)
            (self.path / folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
            self._json(folder + "/summary.json", summary(accuracies[-1], **summary_fields))
        return self.path / folder

    def _json(self, name, data):
        (self.path / name).write_text(json.dumps(data), encoding="utf-8")

    def diverged(self, variant, seed, step, accuracies=(0.5, 0.4)):
        """As a job leaves it."""
        error = "the loss of worker 1 is no finite number"
        more = {"cause": "DIVERGED", "reason": error, "diverged_at_step": step}
        return self.run(variant, seed, accuracies, "failed", error, **more)

    def load(self):
        self._json("experiment.json", self.experiment)
        return load.load_experiment(self.path)

    def results(self):
        return results.compute(self.load())

    def report(self):
        """Exit status, standard error and the page."""
        self._json("experiment.json", self.experiment)
        errors = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            status = main.main([str(self.path)])
        page = self.path / "report.html"
        return status, errors.getvalue(), page.read_text(encoding="utf-8") if page.exists() else ""


class Results(unittest.TestCase):
    def test_time_to_target_is_the_first_evaluation_at_or_beyond_it(self):
        folder = Folder(self)
        folder.experiment["target"] = {"test_accuracy": 0.9, "test_loss": 0.1}
        folder.variant("a")
        folder.run("a", 1, [0.5, 0.9, 0.8, 0.95])
        folder.run("a", 2, [0.5, 0.6, 0.8, 0.91])
        folder.run("a", 3, [0.5, 0.6, 0.8, 0.89])
        found = folder.results().of("a")
        self.assertEqual(found.values["epochs_to_test_accuracy"], {1: 2.0, 2: 4.0})
        self.assertEqual(found.values["seconds_to_test_accuracy"], {1: 4.0, 2: 8.0})
        self.assertEqual(found.values["examples_to_test_accuracy"], {1: 2000.0, 2: 4000.0})
        self.assertEqual((found.reached("test_accuracy"), found.reached("test_loss")), (2, 0))

    def test_percentiles_of_staleness_are_those_of_all_seeds_together(self):
        folder = Folder(self)
        folder.variant("a")
        # Percentiles of the seeds: 0 and 7, of which the mean is not a percentile.
        for seed, bins, top in ((1, [90], 0), (2, [0] * 7 + [30], 7)):
            figures = {"p50": top, "p99": top, "max": top}
            folder.run("a", seed, [0.9], missed_clocks=figures, missed_clocks_histogram=bins)
        status, errors, page = folder.report()
        self.assertEqual(status, 0, errors)
        self.assertIn("missed clocks: p50 / p99 / max", page)
        self.assertIn("<td>0 / 7 / 7</td>", page.replace(words.SPACE, " "))
        with open(folder.path / "data" / "results.csv", newline="", encoding="utf-8") as file:
            (row,) = csv.DictReader(file)
        self.assertEqual([row[f"missed_clocks_{name}"] for name in ("p50", "p99", "max")], ["0", "7", "7.0"])
        self.assertNotIn("missed_clocks_p50_mean", row)

    def test_a_run_of_an_older_version_is_said_to_have_no_staleness(self):
        folder = Folder(self)
        folder.variant("a")
        place = folder.run("a", 1, [0.9])
        old = summary(0.9)
        for key in ("missed_clocks", "missed_updates", "lead"):
            del old[key], old[key + "_histogram"]
        old["staleness_clocks"] = {"p50": 1, "p99": 2, "max": 3}
        (place / "summary.json").write_text(json.dumps(old), encoding="utf-8")
        status, errors, page = folder.report()
        self.assertEqual(status, 1)
        for said in (errors, page):
            self.assertIn("without missed clocks, missed updates and lead; run this run again", said)
        self.assertNotIn("p50 / p99 / max", page)

    def test_two_seeds_have_a_line_from_one_value_to_the_other(self):
        folder = Folder(self)
        folder.variant("a")
        folder.run("a", 1, [0.5])
        folder.run("a", 2, [0.9])
        self.assertEqual(plots._span(folder.results().of("a"), "test_accuracy"), (0.5, 0.9))

    def test_times_to_target_are_compared_only_where_every_run_reached_it(self):
        folder = Folder(self)
        folder.experiment["target"] = {"test_accuracy": 0.9}
        for name, last in (("base", 0.95), ("all", 0.97), ("some", 0.5)):
            folder.variant(name)
            folder.run(name, 1, [0.5, 0.92 if name == "all" else 0.6, 0.95])
            folder.run(name, 2, [0.5, 0.6, last])
            folder.run(name, 3, [0.95, 0.6, last])
        found = folder.results()
        self.assertIn("epochs_to_test_accuracy", found.of("all").compared)
        self.assertNotIn("epochs_to_test_accuracy", found.of("some").compared)
        self.assertIn("test_accuracy", found.of("some").compared)

    def test_means_shares_and_the_comparison_with_the_baseline(self):
        folder = Folder(self)
        folder.experiment["baseline"] = "base"
        folder.variant("other")
        folder.variant("base")
        for seed, (base, other) in enumerate([(0.90, 0.91), (0.92, 0.94), (0.94, 0.97)], start=1):
            folder.run("base", seed, [base])
            folder.run("other", seed, [other])
        found = folder.results()
        other = found.of("other")
        self.assertAlmostEqual(other.means["test_accuracy"].mean, 0.94)
        self.assertAlmostEqual(other.means["test_accuracy"].standard_deviation, 0.03)
        self.assertAlmostEqual(other.compared["test_accuracy"].difference.difference, 0.02)
        self.assertEqual(other.compared["test_accuracy"].difference.test, "paired t")
        self.assertAlmostEqual(other.means["wait_share"].mean, (0.25 + 0.5) / 2)
        self.assertAlmostEqual(other.means["bytes_per_example"].mean, 12e6 / (500 * 8))
        self.assertEqual(found.baseline().compared, {})

    def test_how_a_run_says_that_it_has_diverged(self):
        nan = "the loss is nan at step 12 of worker 3: the training has diverged; lower the learning rate"
        gradient = "worker 1 has pushed a gradient with a NaN or an infinity for a/b at clock 0; it is not in the model"
        cases = [
            (dict(state="failed", accuracies=[0.5], cause="DIVERGED", reason="x", diverged_at_step=7), 7),
            (dict(state="failed", accuracies=[0.5], cause="DIVERGED", diverged_at_step=0), 0),
            (
                dict(
                    state="failed",
                    accuracies=[0.5],
                    cause="NONFINITE_GRADIENT",
                    reason=gradient,
                    error=gradient,
                ),
                None,
            ),
            (dict(state="failed", error=nan), 12),
            (
                dict(
                    state="failed",
                    accuracies=[0.5],
                    cause="STOPPED",
                    reason=nan,
                    error="the job failed: " + nan,
                ),
                12,
            ),
            (dict(state="failed", error=gradient), None),
            (dict(state="diverged", accuracies=[0.5], cause="DIVERGED", diverged_at_step=7), 7),
            (dict(accuracies=[0.5], test_loss=None), None),
            (dict(accuracies=[0.5], train_loss=None), None),
            (dict(state="failed", accuracies=[0.5], cause="COMPLETED", test_loss=None), None),
        ]
        others = [
            dict(state="failed", error="worker 2 exited with 1"),
            dict(state="failed", accuracies=[0.5], cause="STOPPED", reason="by a user"),
            dict(state="failed", accuracies=[0.5], cause="WORKER_LOST", reason=nan),
            dict(accuracies=[0.5]),
            dict(state="to do"),
        ]
        folder = Folder(self)
        folder.variant("a")
        for seed, case in enumerate([case for case, _ in cases] + others):
            folder.run("a", seed, **case)
        runs = folder.load().runs()
        for run, (case, step) in zip(runs, cases):
            self.assertEqual((run.state, run.diverged_at_step), (load.DIVERGED, step), case)
            self.assertNotIn("at clock", run.error)
        self.assertEqual(
            [run.state for run in runs[len(cases) :]], [load.FAILED] * 3 + [load.FINISHED, load.TO_DO]
        )

    def test_runs_that_diverged_are_counted_beside_the_mean_of_the_others(self):
        folder = Folder(self)
        folder.experiment["target"] = {"test_accuracy": 0.45}
        for name in ("base", "some", "all"):
            folder.variant(name)
        for seed in (1, 2, 3):
            folder.run("base", seed, [0.5, 0.9 + seed / 100])
            if seed == 1:
                folder.run("some", seed, [0.5, 0.97])
            else:
                folder.diverged("some", seed, 10 * seed)
            folder.diverged("all", seed, 5)
        status, errors, _ = folder.report()
        self.assertEqual((status, errors), (0, ""))
        found = folder.results()
        some, everyone = found.of("some"), found.of("all")
        # The last accuracy before a run diverged is none that it has reached.
        self.assertEqual(some.values["test_accuracy"], {1: 0.97})
        self.assertEqual(some.means["test_accuracy"].mean, 0.97)
        self.assertEqual((some.all_diverged(), everyone.all_diverged()), (False, True))
        self.assertEqual(everyone.means["test_accuracy"], None)
        # Times to a target: never, also where it had been reached before.
        self.assertEqual((some.reached("test_accuracy"), everyone.reached("test_accuracy")), (1, 0))
        self.assertFalse(some.all_reached("test_accuracy"))
        # The runs that are left are a selection; how fast they were says something.
        self.assertEqual(set(some.compared), set(results.SPEEDS))
        with open(folder.path / "data/results.csv", newline="", encoding="utf-8") as file:
            rows = {row["variant"]: row for row in csv.DictReader(file)}
        self.assertEqual((rows["some"]["diverged"], rows["some"]["diverged_at_steps"]), ("2", "20 30"))
        self.assertEqual(
            (rows["all"]["diverged"], rows["all"]["failed"], rows["all"]["finished"]), ("3", "0", "0")
        )
        with open(folder.path / "data/runs.csv", newline="", encoding="utf-8") as file:
            row = list(csv.DictReader(file))[4]
        self.assertEqual(
            (row["state"], row["diverged_at_step"], row["test_accuracy"]), ("diverged", "20", "")
        )
        data = json.loads((folder.path / "data/results.json").read_text(encoding="utf-8"))
        self.assertEqual(data["variants"][1]["diverged_at_step"], {"2": 20, "3": 30})

    def test_axes_with_numbers_are_found_in_their_order(self):
        folder = Folder(self)
        for optimizer in ("sgd", "adam"):
            for delay in ("uniform:16", "uniform:2", "uniform:0"):
                name = f"{optimizer} {delay}"
                folder.variant(name, replay=delay, axes={"replay": delay, "optimizer": optimizer})
                folder.run(name, 1, [0.9], wall_seconds=0)
        (axis,) = folder.results().axes
        self.assertEqual(axis.field, "replay")
        self.assertEqual(axis.lines(), ["sgd", "adam"])
        self.assertEqual([point.label for point in axis.of_line("adam")], ["0", "2", "16"])

    def test_a_line_is_named_by_what_tells_it_from_the_others(self):
        folder = Folder(self)
        for optimizer in ("{sgd{rate:0.1}}", "{adam{rate:0.001}}"):
            for delay in ("constant:1", "constant:2", "uniform:2"):
                name = f"{optimizer} {delay}"
                folder.variant(name, replay=delay, axes={"replay": delay}, set=["optimizer=" + optimizer])
                folder.run(name, 1, [0.9])
        (axis,) = folder.results().axes
        self.assertEqual(axis.lines(), ["constant, sgd", "uniform, sgd", "constant, adam", "uniform, adam"])
        self.assertEqual(results.value_names(["{a{b:1}}", "{a{b:2}}"])["{a{b:2}}"], "{a{b:2}}")

    def test_an_axis_without_numbers_is_none_to_plot_along(self):
        folder = Folder(self)
        for value in ("bsp", "allreduce"):
            folder.variant(value, axes={"mode": value})
            folder.run(value, 1, [0.9])
        self.assertEqual(folder.results().axes, [])

    def test_no_bound_is_the_last_value_of_a_staleness_axis(self):
        folder = Folder(self)
        for value, mode in (("inf", "asp"), ("8", "ssp:8"), ("0", "ssp:0")):
            folder.variant(value, mode=mode, axes={"sync.ssp.staleness": value})
            folder.run(value, 1, [0.9])
        (axis,) = folder.results().axes
        self.assertEqual([point.variant for point in axis.points], ["0", "8", "inf"])
        self.assertEqual(len(axis.lines()), 1)

    def test_seeds_are_put_on_common_times_by_carrying_values_forward(self):
        folder = Folder(self)
        folder.variant("a")
        for seed, times in ((1, [1.0, 3.0]), (2, [2.0, 5.0])):
            place = folder.run("a", seed, [0.5, 0.9])
            lines = [evaluation(i + 1, [0.5, 0.9][i], seconds=second) for i, second in enumerate(times)]
            (place / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
        runs = folder.load().variants[0].runs
        curve = curves.curve_of(runs, "test_accuracy", "seconds")
        self.assertEqual(list(curve.x), [2.0, 3.0, 5.0])
        self.assertEqual([round(value, 6) for value in curve.mean], [0.5, 0.7, 0.9])
        self.assertEqual(list(curve.low), [0.5, 0.5, 0.9])
        self.assertEqual(list(curve.high), [0.5, 0.9, 0.9])


class Sentences(unittest.TestCase):
    def summary(self, accuracies):
        folder = Folder(self)
        for name, values in accuracies.items():
            folder.variant(name)
            for seed, value in enumerate(values, start=1):
                folder.run(name, seed, [value])
        return "\n".join(sentences.findings(folder.results())).replace(words.SPACE, " ")

    def test_differences_beyond_noise_are_told_from_the_others(self):
        base = [0.90, 0.92, 0.91, 0.93]
        text = self.summary(
            {
                "base": base,
                "worse": [0.80, 0.821, 0.81, 0.831],
                "better": [0.95, 0.97, 0.961, 0.979],
                "same": [0.91, 0.91, 0.92, 0.92],
            }
        )
        self.assertRegex(
            text, r"Highest mean test accuracy: better with 96\.50 % .*; the baseline base has 91\.50 %"
        )
        self.assertRegex(
            text, r"Worse than the baseline in test accuracy, beyond noise: worse \(−9\.95 points, p"
        )
        self.assertRegex(
            text, r"Better than the baseline in test accuracy, beyond noise: better \(\+5\.00 points"
        )
        self.assertRegex(
            text,
            r"No difference from the baseline in test accuracy was found for same \(one of 3\.4 points would "
            r"have been, four times in five\)\. That does not make them the same",
        )

    def test_what_only_the_correction_takes_away_is_undecided(self):
        # One comparison with p of about 0.04 among three.
        base = [0.90, 0.91, 0.92]
        text = self.summary(
            {"base": base, "a": [0.88, 0.885, 0.887], "b": [0.90, 0.92, 0.91], "c": [0.91, 0.91, 0.91]}
        )
        self.assertNotRegex(text, "no difference found")
        self.assertRegex(
            text, r"Undecided: a \(−2\.60 points\)\..*after the correction for 3 comparisons it does not"
        )
        self.assertNotRegex(text, "Worse than the baseline|Better than the baseline")

    def test_along_an_axis_what_is_worse_and_what_failed_is_said(self):
        folder = Folder(self)
        for value, accuracies in (
            ("0", [0.90, 0.92, 0.91]),
            ("4", [0.901, 0.922, 0.908]),
            ("8", [0.95, 0.971, 0.961]),
            ("16", [0.80, 0.8201, 0.81]),
            ("64", []),
        ):
            folder.variant(value, axes={"staleness": value})
            for seed in (1, 2, 3):
                if accuracies:
                    folder.run(value, seed, [accuracies[seed - 1]])
                else:
                    folder.run(value, seed, state="failed", error="the loss is nan" + 200 * "!")
        text = "\n".join(sentences.findings(folder.results())).replace(words.SPACE, " ")
        self.assertRegex(
            text, r"Along staleness, test accuracy: worse, beyond noise, than at 0: at 16 \(−\d+\.\d\d points"
        )
        self.assertRegex(text, r"better, beyond noise, than at 0: at 8 \(\+5\.\d\d points")
        self.assertRegex(
            text,
            r"no difference from 0 was found at 4 \(one of \d\.\d points would have been, four times in five\); runs failed at 64\.",
        )
        self.assertRegex(text, r"Failed: 64, seed 2: the loss is nan!+… \(in full under the runs\)\.")

    def opening(self, folder):
        told = sentences.opening(folder.results())
        self.assertLessEqual(len(told), 5)
        return [text.replace(words.SPACE, " ").replace(words.THIN_SPACE, " ") for text in told]

    def test_the_opening_says_what_was_asked_compared_found_how_sure_and_at_what_cost(self):
        folder = Folder(self)
        folder.experiment["machine"] = {"cpus": 2}
        for name in ("base", "other", "third"):
            folder.variant(name)
            for seed in (1, 2, 3):
                folder.run(
                    name, seed, [{"base": 0.9, "other": 0.8, "third": 0.9}[name] + seed / 1000 * len(name)]
                )
        asked, compared, came_out, sure, cost = self.opening(folder)
        self.assertEqual(asked, "The question: Does <b>it</b> work?")
        self.assertEqual(
            compared,
            "A model was trained on 1 000 examples in 3 ways (variants: base, other and third; base is the baseline that "
            "the others are held against), each from 3 random starts (seeds).",
        )
        self.assertEqual(
            came_out,
            "Variant third had the largest mean share of test examples that the model gets right (test accuracy), "
            "91.00 %; the baseline base had 90.80 %.",
        )
        self.assertRegex(
            sure,
            r"^1 of 2 differences from the baseline is beyond what chance explains \(p at most 0\.05\); of",
        )
        self.assertEqual(
            cost, "The 9 runs together took 2 minutes on one machine with 2 processors, 10 seconds each."
        )

    def test_the_opening_names_what_diverged_and_what_is_not_done(self):
        folder = Folder(self)
        folder.experiment["question"] = []
        for value in ("0", "4"):
            folder.variant(value, axes={"delays": "uniform:" + value})
        folder.run("0", 1, [0.9])
        folder.run("0", 2, state="to do")
        folder.diverged("4", 1, 12)
        asked, _, came_out, sure, cost = self.opening(folder)
        self.assertEqual(
            asked,
            "The question: what does the largest delay of a gradient change in the test accuracy of the trained model?",
        )
        self.assertRegex(
            came_out,
            r"of 0 was 90\.00 %; 1 of 3 runs diverged, all of 4: the loss grew until it was no number any more\.",
        )
        self.assertIn("nobody can tell a difference from chance", sure)
        self.assertTrue(
            cost.startswith("So far 2 of 3 runs are done; the 2 runs together took 20 seconds"), cost
        )

    def test_what_diverged_is_told_with_its_steps(self):
        folder = Folder(self)
        for value in ("0", "4", "8"):
            folder.variant(value, axes={"delays": "uniform:" + value})
            for seed in (1, 2, 3):
                if value == "8" or (value == "4" and seed == 2):
                    folder.diverged(value, seed, 10 * seed)
                else:
                    folder.run(value, seed, [0.9 + seed / 100])
        text = "\n".join(sentences.findings(folder.results())).replace(words.SPACE, " ")
        self.assertIn("5 of 9 runs finished, 4 diverged", text)
        self.assertIn(
            "No run came to an end without diverging: 8 (3 of 3 diverged, at steps 10 to 30).", text
        )
        self.assertIn("which flatters: 4 (1 of 3 diverged, at step 20).", text)
        self.assertIn(
            "Along largest delay of a gradient, test accuracy: 92.00 % at 0; runs diverged at 4 (1 of 3) and 8 (3 of 3).",
            text,
        )
        self.assertNotIn("Failed", text)

    def test_only_of_finished_runs_is_it_said_that_workers_were_lost(self):
        folder = Folder(self)
        folder.variant("a")
        folder.run("a", 1, [0.9], workers_lost=["worker 3"])
        folder.run(
            "a",
            2,
            [0.9],
            state="failed",
            error="no worker left",
            cause="NO_WORKER_LEFT",
            workers_lost=["all"],
        )
        text = "\n".join(sentences.findings(folder.results()))
        self.assertIn("Failed: a, seed 2: no worker left.", text)
        self.assertIn("Finished without some of their workers: a, seed 1.", text)

    def test_fewer_than_three_seeds_show_no_difference(self):
        for base, other in (([0.5], [0.9]), ([0.5, 0.51], [0.9, 0.91])):
            text = self.summary({"base": base, "other": other})
            self.assertIn("Intervals and tests take 3, so there are none", text)
            self.assertNotRegex(text, "beyond noise|was found|p =|p <|interval [0-9]")


def metric(key):
    return next(one for one in results.all_metrics({}) if one.key == key)


class Words(unittest.TestCase):
    def mean(self, key, values):
        text = words.mean(metric(key), statistics.mean_with_interval(values))
        return text.replace(words.SPACE, " ").replace(words.THIN_SPACE, " ")

    def test_numbers_are_rounded_to_what_is_known(self):
        self.assertEqual(self.mean("bytes_per_example", [83757.968616] * 3), "83.8 kB (equal in all seeds)")
        self.assertEqual(self.mean("steps", [47, 47]), "47 (equal in all seeds)")
        self.assertEqual(
            self.mean("bytes_per_example", [83757.968, 83757.969, 83757.97]), "83.758 ± < 0.001 kB"
        )
        self.assertEqual(self.mean("test_accuracy", [0.97, 0.98, 0.99]), "98.00 ± 2.48 %")
        self.assertEqual(self.mean("test_accuracy", [0.970001, 0.970002, 0.970003]), "97.00 ± < 0.01 %")
        self.assertEqual(self.mean("test_loss", [0.1234, 0.1243, 0.1239]), "0.1239 ± 0.0011")
        self.assertEqual(self.mean("test_loss", [1.0, 40.0, 100.0]), "50 ± 120")
        self.assertEqual(self.mean("examples_per_second", [15312, 14870, 16001]), "15 400 ± 1 400 /s")
        self.assertEqual(self.mean("wall_seconds", [61.234, 71.9]), "66.6 s")

    def test_differences_are_rounded_likewise(self):
        def text(key, a, b):
            found = statistics.compare(dict(enumerate(a)), dict(enumerate(b)))
            return words.difference(metric(key), found).replace(words.SPACE, " ")

        self.assertEqual(text("test_loss", [1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), "equal in all seeds")
        self.assertEqual(
            text("test_accuracy", [0.5, 0.6, 0.7], [0.50001, 0.6, 0.69999]), "+0.00 points [+0.00, +0.00]"
        )
        self.assertEqual(
            text("wall_seconds", [10.0, 12.0, 11.0], [20.0, 24.0, 25.0]), "−12.0 s [−17.0, −7.0]"
        )
        self.assertEqual(
            words.size(metric("test_accuracy"), -0.03372).replace(words.SPACE, " "), "3.4 points"
        )

    def test_fields_are_told_in_words_with_units(self):
        for field, label in (
            ("replay", "largest delay of a gradient (clocks)"),
            ("optimizer.momentum.learning_rate", "learning rate"),
            ("limits.lease_ms", "lease (milliseconds)"),
            ("sync.dssp.max_staleness", "max staleness (clocks)"),
            ("workers", "number of workers"),
        ):
            self.assertEqual(words.field_label(field), label)

    def test_durations(self):
        self.assertEqual(
            [words.duration(s) for s in (0.2, 40, 720, 12600)],
            ["1 second", "40 seconds", "12 minutes", "3.5 hours"],
        )


class Diverged(unittest.TestCase):
    """On the page and in the plots."""

    @classmethod
    def setUpClass(cls):
        case = unittest.TestCase()
        cls.addClassCleanup(case.doCleanups)
        folder = cls.folder = Folder(case)
        folder.experiment["target"] = {"test_accuracy": 0.9}
        for value in ("0", "4", "8"):
            folder.variant("d" + value, axes={"delays": "uniform:" + value})
            for seed in (1, 2, 3):
                if value == "8" or (value == "4" and seed == 2):
                    folder.diverged("d" + value, seed, 10 * seed)
                else:
                    folder.run("d" + value, seed, [0.5, 0.9 + seed / 100])
        cls.status, cls.errors, cls.page = folder.report()
        cls.page = cls.page.replace(words.SPACE, " ")

    def marks(self, draw):
        """Of the crosses in the picture: (x, height as a share)."""
        (axes,) = draw.figure.axes
        self.assertIn("diverged", [text.get_text() for text in axes.texts])
        return [
            (float(x), float(y))
            for line in axes.lines
            if line.get_marker() == "x"
            for x, y in zip(line.get_xdata(), line.get_ydata())
        ]

    def test_the_tables_say_so_at_the_variant(self):
        self.assertEqual((self.status, self.errors), (0, ""))
        # Along the axis and in the table of variants, whose losses need no step.
        self.assertEqual(self.page.count('<span class="bad">diverged (at steps 10 to 30)</span>'), 2)
        self.assertEqual(self.page.count('<span class="bad">diverged</span>'), 2)
        self.assertEqual(self.page.count('92.00 % <span class="bad">(1 of 3 diverged, at step 20)</span>'), 2)
        self.assertIn('<td>0 of 3 <span class="bad">(3 diverged)</span></td>', self.page)
        self.assertIn('<span class="bad">(2 of 3 reached it)</span>', self.page)
        self.assertIn('<span class="bad">never</span>', self.page)
        self.assertIn("seed 1: diverged (at step 10)", self.page)
        self.assertNotIn("at clock", self.page)

    def test_the_plot_along_the_axis_has_a_mark_at_the_bottom(self):
        found = self.folder.results()
        drawing = plots._along_axis(found, found.axes[0], "test_accuracy")
        ((x, height),) = self.marks(drawing)
        self.assertEqual(x, 2.0)
        self.assertLess(height, 0.1)
        self.assertIn(
            "d4 (1 of 3 diverged, at step 20) and d8 (3 of 3 diverged, at steps 10 to 30).",
            drawing.caption.replace(words.SPACE, " "),
        )
        hollow = [
            line.get_xdata()
            for line in drawing.figure.axes[0].lines
            if line.get_markerfacecolor() == layout.PAPER
        ]
        self.assertEqual([list(x) for x in hollow if len(x)], [[1.0]])

    def test_curves_have_a_mark_where_each_run_diverged(self):
        found = self.folder.results()
        panels = plots._panels(found)
        for metric_key, at_bottom in (("test_accuracy", True), ("test_loss", False)):
            drawing = plots._curves(found, panels, plots._styles(panels), metric_key, "steps")
            marks = self.marks(drawing)
            self.assertEqual([x for x, _ in marks], [20, 10, 20, 30])
            for _, height in marks:
                self.assertEqual(height < 0.1, at_bottom)
                self.assertEqual(height > 0.9, not at_bottom)

    def test_when_all_variants_diverged_the_page_says_so(self):
        folder = Folder(self)
        for name in ("a", "b"):
            folder.variant(name)
            folder.diverged(name, 1, 7)
        status, errors, page = folder.report()
        self.assertEqual((status, errors), (0, ""))
        page = page.replace(words.SPACE, " ")
        self.assertIn(
            "<p>All runs that have ended diverged: the loss grew until it was no number any more.</p>", page
        )
        self.assertEqual(page.count('<span class="bad">diverged (at step 7)</span>'), 2)

    def test_where_a_run_diverged_is_told_by_time_and_examples_too(self):
        runs = self.folder.load().variant("d8").runs
        # Evaluations, 2 s an epoch of 10 steps; the last records are of step 20 and of step 10.
        self.assertEqual(curves.places_of_divergence(runs, "examples", 1000), [1000, 2000, 3000])
        self.assertEqual(curves.places_of_divergence(runs, "seconds", 1000), [4.0, 4.0, 4.0])
        empty = load.Run("a", 1, "a", load.DIVERGED)
        self.assertEqual(curves.places_of_divergence([empty], "examples", 1000), [0.0])


class Colors(unittest.TestCase):
    def luminance(self, color):
        """WCAG 2.1, relative luminance."""
        parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        parts = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]

    def contrast(self, a, b):
        low, high = sorted((self.luminance(a), self.luminance(b)))
        return (high + 0.05) / (low + 0.05)

    def test_every_color_has_one_for_the_dark_that_stands_out(self):
        for light, dark in layout.DARK.items():
            if light not in (layout.PAPER, layout.GRID):
                self.assertGreater(self.contrast(dark, layout.DARK[layout.PAPER]), 5, light)
                self.assertGreater(self.contrast(light, layout.PAPER), 2, light)
        self.assertLessEqual(set(layout.COLORS), set(layout.DARK))


class Reports(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        """One full report for all tests that only look at it."""
        cls.case = unittest.TestCase()
        folder = cls.folder = Folder(cls.case)
        cls.addClassCleanup(cls.case.doCleanups)
        folder.experiment["target"] = {"test_accuracy": 0.9}
        folder.variant("bsp", config='job: "made-up"  # <config>')
        folder.variant("ssp:3", mode="ssp:3")
        folder.variant("lost", mode="asp")
        for seed in (1, 2, 3):
            folder.run("bsp", seed, [0.5, 0.8, 0.95 + seed / 100])
            folder.run("ssp:3", seed, [0.6, 0.91, 0.95 + seed / 1000])
        folder.run("lost", 1, state="failed", error="worker 2 exited with 1 & <more>")
        folder.run("lost", 2, [0.5, 0.6, 0.7])
        folder.run("lost", 3, state="to do")
        (folder.path / "runs/bsp-1/images/digits").mkdir(parents=True)
        (folder.path / "runs/bsp-1/images/digits/10.png").write_bytes(grey_png(2, 3))
        cls.status, cls.errors, cls.page = folder.report()

    def rows(self, name):
        with open(self.folder.path / "data" / name, encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_runs_that_failed_or_are_to_do_do_not_fail_the_report(self):
        self.assertEqual((self.status, self.errors), (0, ""))
        self.assertIn("7 of 9 runs finished, 1 failed, 1 still to do", self.page)
        self.assertIn("Failed: lost, seed 1: worker 2 exited with 1 &amp; &lt;more&gt;.", self.page)

    def test_the_page_needs_nothing_from_elsewhere(self):
        found = []

        class Reader(html.parser.HTMLParser):
            def handle_starttag(self, tag, attributes):
                self.handle(tag, attributes)

            def handle(self, tag, attributes):
                found.extend((tag, name, value) for name, value in attributes if name in ("src", "href"))
                found.extend((tag, "", "") for _ in [0] if tag in ("script", "link", "iframe"))

        Reader().feed(self.page)
        self.assertGreater(len(found), 5)
        for tag, name, value in found:
            self.assertTrue(tag == "img" and value.startswith("data:image/"), (tag, name, value[:40]))
        self.assertNotRegex(self.page, r"https?://|@import|url\(")

    def test_texts_of_the_experiment_are_no_markup(self):
        self.assertIn("Made &lt;up&gt; &amp; small", self.page)
        self.assertIn("Does &lt;b&gt;it&lt;/b&gt; work?", self.page)
        self.assertIn("# &lt;config&gt;", self.page)
        self.assertNotIn("<b>", self.page)

    def test_the_page_tells_how_to_repeat_each_run(self):
        for seed in (1, 2, 3):
            self.assertIn(f"slackline run --set train.seed={seed}", self.page)
        self.assertIn("slackline compare made-up.textproto", self.page)
        self.assertIn("0123abcd", self.page)

    def test_every_plot_is_there_in_both_forms(self):
        names = {path.name for path in (self.folder.path / "plots").iterdir()}
        # One for each fact: steps are examples in another unit, and missed clocks are missed updates.
        expected = "test_accuracy_by_examples test_accuracy_by_seconds seconds_to_test_accuracy missed_updates lead waiting"
        self.assertEqual(names, {name + form for name in expected.split() for form in (".png", ".svg")})

    def test_tables_say_when_they_scroll(self):
        self.assertEqual(self.page.count("<table>"), 4)
        self.assertEqual(self.page.count('<div class="scroll"><div class="wide"><div class="hint"'), 4)

    def test_plots_follow_dark_colors(self):
        for path in (self.folder.path / "plots").glob("*.svg"):
            text = path.read_text(encoding="utf-8")
            self.assertEqual(text.count("@media (prefers-color-scheme: dark)"), 1, path.name)
            rules, _, body = text.partition("</defs>")
            used = set(re.findall(r"(fill|stroke): (#[0-9a-f]+)", body))
            self.assertGreater(len(used), 4, path.name)
            for what, color in used:
                self.assertIn(
                    f'[style*="{what}: {color}"]{{{what}:{layout.DARK[color]} !important}}', rules, path.name
                )
        self.assertEqual(self.page.count("data:image/svg+xml;base64,"), 6)

    def test_the_table_of_variants_parses_and_agrees(self):
        rows = {row["variant"]: row for row in self.rows("results.csv")}
        self.assertEqual(list(rows), ["bsp", "ssp:3", "lost"])
        self.assertAlmostEqual(float(rows["bsp"]["test_accuracy_mean"]), 0.97)
        self.assertAlmostEqual(float(rows["bsp"]["test_accuracy_sd"]), 0.01)
        self.assertEqual(rows["bsp"]["test_accuracy_p_value"], "")
        self.assertEqual(rows["ssp:3"]["test_accuracy_test"], "paired t")
        self.assertEqual(rows["ssp:3"]["epochs_to_test_accuracy_mean"], "2.0")
        self.assertEqual(
            (rows["lost"]["runs"], rows["lost"]["failed"], rows["lost"]["to_do"]), ("3", "1", "1")
        )
        self.assertEqual((rows["lost"]["test_accuracy_sd"], rows["lost"]["reached_test_accuracy"]), ("", "0"))
        self.assertEqual(rows["lost"]["test_accuracy_test"], "fewer than 3 seeds: no test")
        data = json.loads((self.folder.path / "data/results.json").read_text(encoding="utf-8"))
        mean = data["variants"][0]["metrics"]["test_accuracy"]["mean"]
        self.assertAlmostEqual(mean, float(rows["bsp"]["test_accuracy_mean"]))

    def test_the_tables_of_runs_and_metrics_parse(self):
        runs = self.rows("runs.csv")
        self.assertEqual(len(runs), 9)
        self.assertEqual([run["state"] for run in runs[-3:]], ["failed", "finished", "to do"])
        metrics = self.rows("metrics.csv")
        self.assertEqual(len(metrics), 7 * (3 + 2))
        self.assertEqual(metrics[1]["examples"], "2000.0")

    def test_event_files_hold_the_metrics(self):
        folders = sorted((self.folder.path / "tensorboard").iterdir())
        self.assertEqual(len(folders), 7)
        (file,) = (self.folder.path / "tensorboard/bsp-1").iterdir()
        self.assertRegex(file.name, r"^events\.out\.tfevents\.\d+")
        events = read_events(file.read_bytes())
        self.assertEqual(events[0][3], b"brain.Event:2")
        started = 1767323045.0  # 2026-01-02T03:04:05Z
        scalars = {
            (tag, step): (time - started, value)
            for time, step, scalar, _ in events[1:]
            for tag, value in [scalar]
        }
        self.assertEqual(len(scalars), 3 * 3 + 3 + 1)
        self.assertEqual(scalars[b"images/digits", 10][1], (2, 3, 1, grey_png(2, 3)))
        self.assertEqual(scalars[b"test/spread", 10], (2.0, 2.5))
        self.assertEqual(scalars[b"train/norm", 10], (3.0, 0.5))  # Of workers 0 and 1.
        self.assertEqual(scalars[b"test/loss", 10], (2.0, 0.5))
        self.assertAlmostEqual(scalars[b"test/accuracy", 30][1], 0.96, places=6)
        self.assertEqual(scalars[b"train/loss", 10], (3.0, 1.0))
        self.assertEqual(scalars[b"examples_per_second", 10], (3.0, 200.0))

    def test_a_second_report_replaces_the_first(self):
        files = lambda: sorted(p.relative_to(self.folder.path) for p in self.folder.path.rglob("*"))
        before, (status, _, page) = files(), self.folder.report()
        self.assertEqual((status, files(), page), (0, before, self.page))


class EventFiles(unittest.TestCase):
    def test_the_checksum_is_crc32c(self):
        self.assertEqual(tensorboard.crc32c(b"123456789"), 0xE3069283)  # RFC 3720's check value.
        self.assertEqual(tensorboard.crc32c(bytes(32)), 0x8A9136AA)  # RFC 3720, B.4.

    def test_the_start_is_a_date_or_seconds(self):
        self.assertEqual(tensorboard.unix_seconds("1970-01-02T00:00:00Z"), 86400.0)
        self.assertEqual(tensorboard.unix_seconds("1970-01-02T02:00:00+02:00"), 86400.0)
        self.assertEqual(tensorboard.unix_seconds(12.5), 12.5)
        self.assertEqual(tensorboard.unix_seconds(None), 0.0)


def grey_png(height, width):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(height * (1 + width)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


class SingleRuns(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.path = pathlib.Path(place.name) / "my-run"
        (self.path / "images/digits").mkdir(parents=True)
        (self.path / "images/digits/300.png").write_bytes(grey_png(5, 200))
        (self.path / "images/digits/20.png").write_bytes(grey_png(2, 3))
        (self.path / "cluster.textproto").write_text('job: "x"', encoding="utf-8")
        self.metrics([evaluation(1, 0.5), training(0, 10, 0.5, 2.0), training(1, 10, 1.5, 3.0)])
        (self.path / "summary.json").write_text(json.dumps(summary(0.5)), encoding="utf-8")

    def metrics(self, records, end=""):
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (self.path / "metrics.jsonl").write_text(lines + end, encoding="utf-8")

    def report(self):
        """Exit status, errors, and what the event file holds, by tag and step."""
        errors, output = io.StringIO(), io.StringIO()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
            status = main.main([str(self.path)])
        if not (self.path / "tensorboard").exists():
            return status, errors.getvalue(), None
        self.assertEqual(output.getvalue(), f"{self.path / 'tensorboard'}\n")
        (file,) = (self.path / "tensorboard").iterdir()
        events = read_events(file.read_bytes())
        self.assertEqual(events[0][3], b"brain.Event:2")
        return status, errors.getvalue(), {(e[2][0], e[1]): (e[0], e[2][1]) for e in events[1:]}

    def test_its_event_file_has_metrics_and_images(self):
        status, errors, found = self.report()
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(found[b"test/accuracy", 10][1], 0.5)
        self.assertEqual(found[b"train/loss", 10][1], 1.0)
        self.assertEqual(found[b"train/norm", 10][1], 0.5)
        self.assertEqual(found[b"examples_per_second", 10][1], 200.0)
        self.assertEqual(found[b"images/digits", 300][1], (5, 200, 1, grey_png(5, 200)))
        self.assertEqual(found[b"images/digits", 20][1], (2, 3, 1, grey_png(2, 3)))
        begun = (self.path / "cluster.textproto").stat().st_mtime
        self.assertEqual(found[b"test/accuracy", 10][0], begun + 2.0)
        self.assertEqual(found[b"images/digits", 20][0], (self.path / "images/digits/20.png").stat().st_mtime)
        self.assertEqual({p.name for p in self.path.iterdir()} & {"report.html", "data", "plots"}, set())

    def test_a_second_report_replaces_the_first(self):
        first = self.report()
        self.assertEqual(self.report(), first)

    def test_a_run_that_goes_on_has_what_is_there(self):
        (self.path / "summary.json").unlink()
        self.metrics([evaluation(1, 0.5)], end='{"kind":"eval","st')
        status, errors, found = self.report()
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(found[b"test/accuracy", 10][1], 0.5)
        self.metrics([evaluation(1, 0.5), evaluation(2, 0.75)])
        self.assertEqual(self.report()[2][b"test/accuracy", 20][1], 0.75)

    def test_a_loss_that_is_no_number_is_there_and_one_that_nobody_gave_is_not(self):
        records = [evaluation(1, 0.5), training(0, 10, 0.5, 2.0)]
        self.metrics([{**record, "loss": None} for record in records])
        found = self.report()[2]
        self.assertTrue(math.isnan(found[b"test/loss", 10][1]) and math.isnan(found[b"train/loss", 10][1]))
        for record in records:
            del record["loss"]
        self.metrics(records)
        self.assertEqual({tag for tag, _ in self.report()[2] if tag.endswith(b"loss")}, set())

    def test_images_alone_will_do(self):
        for name in ("summary.json", "metrics.jsonl", "cluster.textproto"):
            (self.path / name).unlink()
        status, errors, found = self.report()
        self.assertEqual((status, errors), (0, ""))
        self.assertEqual(sorted(found), [(b"images/digits", 20), (b"images/digits", 300)])

    def test_damaged_images_are_named_and_the_others_are_there(self):
        (self.path / "images/digits/40.png").write_bytes(b"GIF89a")
        (self.path / "images/digits/last.png").write_bytes(grey_png(2, 2))
        (self.path / "images/digits/50.png.17.part").write_bytes(b"")
        status, errors, found = self.report()
        self.assertEqual(status, 1)
        self.assertIn("digits/40.png: it is no PNG of grey or color", errors)
        self.assertIn("digits/last.png: its name is no step", errors)
        self.assertEqual(errors.count("\n"), 2)
        self.assertEqual(len([tag for tag, _ in found if tag == b"images/digits"]), 2)

    def test_damaged_metrics_are_named(self):
        self.metrics([evaluation(1, 0.5)], end='{"kind":"eval","st')
        status, errors, found = self.report()
        self.assertEqual((status, found), (1, None))
        self.assertRegex(errors, r"my-run/metrics\.jsonl:2: .*run this run again")

    def test_one_of_an_experiment_has_its_start(self):
        (self.path / "run.json").write_text('{"started": "2026-01-02T03:04:05Z"}', encoding="utf-8")
        self.assertEqual(self.report()[2][b"test/accuracy", 10][0], 1767323047.0)


class BadInput(unittest.TestCase):
    def test_a_damaged_file_is_named_and_the_other_runs_go_on(self):
        folder = Folder(self)
        folder.variant("a")
        folder.run("a", 1, [0.9])
        place = folder.run("a", 2, [0.9])
        (place / "metrics.jsonl").write_text('{"kind":"eval","step":1}\n{"kind":"ev', encoding="utf-8")
        place = folder.run("a", 3, [0.9])
        (place / "summary.json").unlink()
        status, errors, page = folder.report()
        self.assertEqual(status, 1)
        self.assertRegex(errors, r"runs/a-2/metrics\.jsonl:2: .*\n.*runs/a-3/summary\.json: No such file")
        self.assertIn("1 of 3 runs finished, 2 left damaged files", page)

    def test_fields_of_a_wrong_kind_are_named(self):
        for field, value, message in (
            ("worker", [{"compute_seconds": 1.0}], r"worker\[0\] has no rank"),
            ("missed_clocks", 5, "missed_clocks is a int, it must be a dict"),
            ("workers_lost", "all", "workers_lost is a str, it must be a list"),
        ):
            folder = Folder(self)
            folder.variant("a")
            folder.run("a", 1, [0.9], **{field: value})
            self.assertRegex(folder.load().problems[0], r"runs/a-1/summary\.json: " + message)
        for field, value in (("axes", ["x"]), ("set", "x=1")):
            folder = Folder(self)
            folder.variant("a", **{field: value})
            with self.assertRaisesRegex(load.LoadError, rf"experiment\.json: {field} is a"):
                folder.load()

    def test_without_any_finished_run_there_is_still_a_page(self):
        folder = Folder(self)
        folder.experiment["target"] = {"test_loss": 0.1}
        folder.variant("a")
        folder.run("a", 1, state="to do")
        status, errors, page = folder.report()
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("0 of 1 run finished, 1 still to do", page)

    def test_optional_fields_may_be_missing(self):
        folder = Folder(self)
        folder.experiment = {"variants": [{"name": "a"}], "runs": [
            {"variant": "a", "seed": 1, "folder": "runs/a", "state": "finished"}]}  # fmt: skip
        (folder.path / "runs/a").mkdir(parents=True)
        (folder.path / "runs/a/summary.json").write_text("{}", encoding="utf-8")
        (folder.path / "runs/a/metrics.jsonl").write_text('{"kind":"eval","step":1}\n', encoding="utf-8")
        status, errors, page = folder.report()
        self.assertEqual((status, errors), (0, ""))
        self.assertIn("1 of 1 run finished", page)

    def test_one_seed_has_no_intervals_and_a_replay_no_wall_time(self):
        folder = Folder(self)
        for name in ("uniform:0", "uniform:8"):
            folder.variant(name, replay=name)
            folder.run(name, 1, [0.5, 0.9], wall_seconds=0, examples_per_second=0)
        status, _, page = folder.report()
        self.assertEqual(status, 0)
        self.assertIn("No variant has more than 1 finished run. Intervals and tests take 3", page)
        names = {path.stem for path in (folder.path / "plots").iterdir()}
        self.assertIn("test_accuracy_by_examples", names)
        for name in ("test_accuracy_by_seconds", "waiting", "traffic"):
            self.assertNotIn(name, names)
        self.assertNotIn("±", page.split("How to read the numbers")[0].split("<h2>Results")[1].split("<p")[0])
        data = json.loads((folder.path / "data/results.json").read_text(encoding="utf-8"))
        self.assertNotIn("wall_seconds", data["variants"][0]["metrics"])
        self.assertIsNone(data["variants"][0]["metrics"]["test_accuracy"]["low95"])

    def test_the_experiment_itself_must_be_readable(self):
        folder = Folder(self)
        with self.assertRaisesRegex(load.LoadError, r"it has no variants; at least one"):
            folder.load()
        folder.variant("a")
        folder.experiment["baseline"] = "b"
        with self.assertRaisesRegex(load.LoadError, r"baseline 'b' is no variant"):
            folder.load()
        (folder.path / "experiment.json").write_text("[]", encoding="utf-8")
        with self.assertRaisesRegex(load.LoadError, r"experiment\.json: it holds a list"):
            load.load_experiment(folder.path)


class Tuned(unittest.TestCase):
    def folder(self, **more):
        folder = Folder(self)
        for name in ("adam", "sgd"):
            folder.variant(name)
            folder.run(name, 1, [0.9])

        def tried(value, result, diverged=0):
            runs = [f"{value}-tune-{seed}" for seed in (1001, 1002)]
            return {"values": {"rate_factor": value}, "result": result, "diverged": diverged, "runs": runs}

        folder.experiment["tune"] = {
            "fields": ["rate_factor"], "seeds": [1001, 1002], "measure": "test_accuracy",
            "variants": [
                {"variant": "adam", "tried": [tried("0.5", 0.91), tried("10", 0.97), tried("2", 0.95)],
                 "chosen": {"rate_factor": "10"}, "at_edge": True},
                {"variant": "sgd", "tried": [tried("0.5", 0.9), tried("2", None, 1), tried("10", None, 2), tried("20", None)],
                 "chosen": {"rate_factor": "0.5"}, "at_edge": False},
            ], **more,
        }  # fmt: skip
        return folder

    def test_the_page_shows_what_was_tried_and_chosen(self):
        folder = self.folder()
        status, errors, page = folder.report()
        self.assertEqual((status, errors), (0, ""))
        page = page.replace(words.SPACE, " ")
        self.assertIn("<h3>The search for the factor on the learning rate</h3>", page)
        heads = re.search(r"The search for the.*?<tr>(.*?)</tr>", page, re.DOTALL)[1]
        self.assertEqual(re.findall(r">([^<>]+)<", heads), ["variant", "0.5", "2", "10", "20"])
        rows = dict(
            re.findall(r'<th scope="row">(adam|sgd)</th>(.*?)</tr>', page.split("The search for the")[1])[:2]
        )
        cells = {name: re.findall(r"<td>(.*?)</td>", row) for name, row in rows.items()}
        bad = '<span class="bad">{}</span>'.format
        self.assertEqual(cells["adam"], ["91.00 %", "95.00 %", "<b>97.00 %</b> " + bad("at the edge"), "–"])
        self.assertEqual(
            cells["sgd"], ["<b>90.00 %</b>", bad("1 of 2 diverged"), bad("diverged"), bad("no result")]
        )
        self.assertIn("from 2 seeds (1001 and 1002) that are used for nothing else", page)
        self.assertIn("the smallest or largest that was tried for adam; a better one may lie beyond.", page)
        self.assertIn(
            "with the factor on the learning rate that had done best for the variant in a search", page
        )
        with open(folder.path / "data/tune.csv", newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 7)
        self.assertEqual(
            rows[1],
            {"variant": "adam", "rate_factor": "10", "test_accuracy": "0.97", "runs": "2", "diverged": "0", "chosen": "1",
             "chosen_at_edge": "1"},
        )  # fmt: skip

    def test_a_variant_that_diverges_with_each_value_stays_in_tables_and_plots(self):
        folder = self.folder()
        for name in ("adam", "sgd"):
            folder.variant(name + " late")
        for index, variant in enumerate(folder.experiment["variants"]):
            variant["axes"] = {
                "delays": ["uniform:0", "uniform:8"][index // 2],
                "optimizer": variant["name"].split()[0],
            }
        folder.run("adam late", 1, [0.8])
        folder.experiment["runs"].append(
            {"variant": "sgd late", "seed": 1, "folder": "", "state": "not tuned"}
        )
        tried = [{"values": {"rate_factor": "0.5"}, "result": None, "diverged": 1, "runs": ["x"]}]
        folder.experiment["tune"]["variants"].append(
            {
                "variant": "sgd late",
                "tried": tried,
                "chosen": {},
                "at_edge": False,
                "left_out": "it diverged with all",
            }
        )
        status, errors, page = folder.report()
        self.assertEqual((status, errors), (0, ""))
        page = page.replace(words.SPACE, " ")
        self.assertIn("3 of 4 runs finished, 1 not made, as no value of the search was good.", page)
        self.assertIn("No run was made of sgd late: it diverged with all.", page)
        self.assertEqual(page.count('<span class="bad">diverged (with each value tried)</span>'), 2)
        self.assertIn('0 of 1 <span class="bad">(1 not tuned)</span>', page)
        found = folder.results()
        drawing = plots._along_axis(found, found.axes[0], "test_accuracy")
        crosses = [line for line in drawing.figure.axes[0].lines if line.get_marker() == "x"]
        self.assertEqual(len(crosses), 1)
        self.assertIn("sgd late (diverged with each value tried)", drawing.caption)

    def test_what_the_search_took_is_told(self):
        folder = self.folder()
        for name in ("0.5-tune-1001", "2-tune-1002"):
            (folder.path / "runs" / name).mkdir(parents=True)
            (folder.path / "runs" / name / "run.json").write_text(
                '{"elapsed_seconds": 60.5}', encoding="utf-8"
            )
        # Both variants have tries of these names.
        self.assertIn("each; the search before them took 4 minutes.", sentences.opening(folder.results())[-1])

    def test_values_of_two_fields_are_one_column(self):
        folder = self.folder()
        tune = folder.experiment["tune"]
        tune["fields"] = ["rate_factor", "optimizer.momentum.momentum"]
        for variant in tune["variants"]:
            for trial in variant["tried"]:
                trial["values"]["optimizer.momentum.momentum"] = "0.9"
        _, _, page = folder.report()
        self.assertIn('<th scope="col">0.5, 0.9</th>', page)
        self.assertIn("The values of a column: rate_factor, optimizer.momentum.momentum.", page)

    def test_without_a_search_there_is_no_word_of_one(self):
        folder = self.folder()
        del folder.experiment["tune"]
        _, _, page = folder.report()
        self.assertNotIn("The search for", page)
        self.assertFalse((folder.path / "data/tune.csv").exists())

    def test_what_is_wrong_is_named(self):
        for more, message in (
            ({"measure": "speed"}, "tune.measure is 'speed', it must be test_accuracy or test_loss"),
            ({"variants": [{"variant": "lion"}]}, r"tune\.variants\[0\] names no variant"),
            (
                {"variants": [{"variant": "sgd", "tried": [{}]}]},
                r"tune\.variants\[0\]\.tried\[0\] has no values",
            ),
            ({"fields": "x"}, "fields is a str, it must be a list"),
        ):
            with self.assertRaisesRegex(load.LoadError, message):
                self.folder(**more).load()


class Command(unittest.TestCase):
    def run_script(self, *arguments):
        command = [sys.executable, "-B", str(SCRIPT_FOLDER / "slackline_report.py"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    def test_help_and_exit_statuses(self):
        done = self.run_script("--help")
        self.assertEqual(done.returncode, 0)
        self.assertIn("folder with experiment.json and runs/, or that of a run", done.stdout)
        wrong = self.run_script()
        self.assertEqual(wrong.returncode, 2)
        missing = self.run_script("/nonexistent/experiment")
        self.assertEqual((missing.returncode, missing.stdout), (1, ""))
        self.assertIn("/nonexistent/experiment/experiment.json: there is no such file", missing.stderr)
        self.assertIn("give the folder that `slackline compare` or `slackline run` wrote", missing.stderr)

    def test_without_matplotlib_it_says_what_to_install(self):
        # An interpreter without site packages: none of the three is found.
        script = str(SCRIPT_FOLDER / "slackline_report.py")
        command = [sys.executable, "-B", "-E", "-S", script, "anything"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("apt-get install python3-matplotlib python3-numpy python3-scipy", done.stderr)

    def test_of_a_run_nothing_needs_to_be_installed(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "metrics.jsonl").write_text("", encoding="utf-8")
            script = str(SCRIPT_FOLDER / "slackline_report.py")
            command = [sys.executable, "-B", "-E", "-S", script, folder]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stdout), (0, f"{folder}/tensorboard\n"), done.stderr)


if __name__ == "__main__":
    unittest.main()
