"""A job that a real Prometheus watches.

The pages of all processes are as `promtool check metrics` wants them, Prometheus finds
them by the file that `slackline run` writes, and what it has scraped when the job has
ended is what summary.json says. The rules of tools/watch fire when they should, and only
then. Skipped aloud where there is no Prometheus.

Usage: prometheus_test.py FOLDER_OF_PROGRAMS [unittest's arguments]
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCES = pathlib.Path(__file__).resolve().parents[2]
WAIT_MAX = 60

JOB = """
job: "watched"
server { host: "127.0.0.1" count: 2 }
worker { host: "127.0.0.1" count: 2 conditions { step_ms: 20 } }
model { mlp { hidden: 32 } }
data { teacher_student { features: 16 classes: 4 train_examples: 8000 test_examples: 1000 } batch_size: 20 }
optimizer { momentum { learning_rate: 0.1 momentum: 0.9 } }
train { epochs: 2 seed: 1 }
sync { ssp {} }
limits { shard_kib: 1 }
"""


def free_ports(count: int) -> int:
    """The first of so many ports in a row that nobody listens at."""
    for first in range(21000 + os.getpid() % 5000, 32000, count):
        sockets = []
        try:
            for port in range(first, first + count):
                sockets.append(socket.create_server(("127.0.0.1", port)))
            return first
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    raise AssertionError("no free ports")


class PrometheusTest(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="prometheus_test-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.processes = []
        self.addCleanup(self.end_processes)

    def end_processes(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self.processes:
            process.wait()

    def start(self, name: str, command: list) -> subprocess.Popen:
        with open(self.folder / f"{name}.log", "w") as log:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=self.folder, stdout=log, stderr=subprocess.STDOUT
            )
        self.processes.append(process)
        return process

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def wait_until(self, what, why: str):
        end = time.monotonic() + WAIT_MAX
        while time.monotonic() < end:
            if value := what():
                return value
            time.sleep(0.1)
        self.fail(f"{why}: not within {WAIT_MAX} s\n" + "\n".join(self.log(log.stem) for log in self.folder.glob("*.log")))

    def query(self, expression: str) -> dict:
        """Its samples, by their labels but for the name."""
        url = f"http://127.0.0.1:{self.port}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                found = json.load(answer)
        except (urllib.error.URLError, ConnectionError):
            return {}
        self.assertEqual(found["status"], "success", found)
        return {
            tuple(sorted((k, v) for k, v in sample["metric"].items() if k != "__name__")): float(sample["value"][1])
            for sample in found["data"]["result"]
        }

    def sum(self, expression: str) -> float:
        return sum(self.query(expression).values())

    def health_of_rules(self) -> list:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/api/v1/rules", timeout=10) as answer:
            groups = json.load(answer)["data"]["groups"]
        return [rule["health"] for group in groups for rule in group["rules"]]

    def start_prometheus(self, port: int):
        self.port = port
        (self.folder / "prometheus.yml").write_text(
            "global: {scrape_interval: 200ms, evaluation_interval: 1s}\n"
            f"rule_files: ['{SOURCES}/tools/watch/alerts.yml']\n"
            "scrape_configs:\n"
            "  - job_name: slackline\n"
            "    file_sd_configs:\n"
            f"      - {{files: ['{self.folder}/run/metrics_targets.json'], refresh_interval: 1s}}\n"
        )
        self.start(
            "prometheus",
            [
                "prometheus",
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                f"--web.listen-address=127.0.0.1:{self.port}",
            ],
        )

    def test_what_it_has_scraped_is_what_the_summary_says(self):
        first = free_ports(5)
        (self.folder / "job.textproto").write_text(JOB + f"health {{ port: {first} }}\n")
        (self.folder / "run").mkdir()
        self.start_prometheus(first + 4)
        job = self.start("run", [BIN / "slackline", "run", "job.textproto", "--out=run"])
        targets = self.folder / "run" / "metrics_targets.json"
        self.wait_until(lambda: targets.exists() or job.poll() is not None, "where the pages are")
        self.assertEqual(
            [group["targets"] for group in json.loads(targets.read_text())],
            [[f"127.0.0.1:{first + i}"] for i in range(4)],
        )
        self.wait_until(lambda: self.sum("slackline_worker_steps_total") > 0, "steps in Prometheus")
        for port in range(first, first + 4):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                self.assertEqual(page.headers["Content-Type"], "text/plain; version=0.0.4; charset=utf-8")
                text = page.read()
            checked = subprocess.run(
                ["promtool", "check", "metrics"], input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
            )
            self.assertEqual((checked.returncode, checked.stdout), (0, b""), text.decode())
        self.assertEqual(set(self.query("up").values()), {1.0})
        self.wait_until(lambda: self.sum('slackline_job_state{state="running"}') == 1, "a job that runs")
        self.wait_until(lambda: self.sum("slackline_job_workers") == 2, "its workers")
        rules = (SOURCES / "tools/watch/alerts.yml").read_text().count("- alert:")
        self.assertGreater(rules, 0)
        self.wait_until(lambda: self.health_of_rules() == ["ok"] * rules, "rules that can be asked")
        self.assertEqual(job.wait(), 0, self.log("run"))
        self.assertFalse(targets.exists(), "whose processes have gone")
        summary = json.loads((self.folder / "run" / "summary.json").read_text())

        # Counters: never more than in the end, and nearly all of it at the last look.
        def last(name: str) -> float:
            return self.sum(f"last_over_time({name}[1m])")

        for name, whole in (
            ("slackline_worker_steps_total", sum(worker["steps"] for worker in summary["worker"])),
            ("slackline_worker_examples_total", sum(worker["examples"] for worker in summary["worker"])),
            ("slackline_worker_pushed_bytes_total", summary["bytes_pushed"]),
            ("slackline_server_pushes_total", summary["pushes"]),
            ("slackline_server_gradients_applied_total", summary["applied"]),
        ):
            seen = last(name)
            self.assertGreater(seen, 0.5 * whole, name)
            self.assertLessEqual(seen, whole, name)

    def test_rules_fire_when_they_should(self):
        for name in ("tools/watch/alerts.yml", "tests/cluster/alerts_test.yml"):
            shutil.copy(SOURCES / name, self.folder)
        checked = subprocess.run(
            ["promtool", "test", "rules", "alerts_test.yml"],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.assertEqual(checked.returncode, 0, checked.stdout)

    def test_the_board_asks_for_what_there_is(self):
        """Each name in its expressions is on a page, or in the source of one."""
        board = json.loads((SOURCES / "tools/watch/board.json").read_text())
        expressions = [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]
        self.assertGreater(len(expressions), 10)
        pages = (SOURCES / "common/health/metrics_text.cc").read_text()
        table = (SOURCES / "common/metrics/metric_table.cc").read_text()
        for expression in expressions:
            names = re.findall(r"\b(?:slackline|process)_\w+", expression)
            for name in names:
                if name in ("slackline_job",):  # A label.
                    continue
                short = re.sub(r"^(slackline_(server_thread|server|worker|job)|process)_", "", name)
                short = re.sub(r"_(bucket|sum|count)$", "", short)
                self.assertTrue(f'"{short}"' in pages + table or f'"{name}"' in pages, f"{name} in {expression}")


if __name__ == "__main__":
    if not (shutil.which("prometheus") and shutil.which("promtool")):
        print("prometheus_test: skipped, there is no prometheus; tools/setup.sh --cluster installs it")
        sys.exit(0)
    unittest.main(verbosity=2)
