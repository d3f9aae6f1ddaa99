"""tools/gpu_check.sh where there is no GPU: its table, its budget, its end, and what a missing library makes of it.

Most cases have a build folder with programs that only look like ours, and run in moments. Usage:
gpu_check_test.py FOLDER_OF_PROGRAMS [unittest's arguments]
"""

import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

BIN = pathlib.Path(sys.argv.pop(1))
SOURCE = pathlib.Path(__file__).resolve().parents[2]
CHECK = SOURCE / "tools" / "gpu_check.sh"
sys.path.insert(0, str(CHECK.with_suffix("")))
import jobs  # noqa: E402
import processes  # noqa: E402

# `run` of a job is done at once, or hangs, with a process in a session of its own: what NAME.does says.
SLACKLINE = """#!/usr/bin/env python3
import json, pathlib, subprocess, sys, time
if sys.argv[1] != "run":
    sys.exit(1)
out = pathlib.Path(sys.argv[sys.argv.index("--out") + 1])
does = pathlib.Path(__file__).with_name(out.name + ".does")
(out / "logs").mkdir(parents=True)
(out / "logs" / "worker-0.log").write_text("its log\\n")
if does.exists() and does.read_text() == "hang":
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    (out / "child").write_text(str(child.pid))
    time.sleep(1000)
summary = {"state": "FINISHED", "test_accuracy": 0.9, "examples_per_second": 1000.0, "model_sha256": "ab" * 32}
if does.exists():
    summary.update(json.loads(does.read_text()))
(out / "summary.json").write_text(json.dumps(summary))
"""


def alive(pid: int) -> bool:
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(what, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            raise AssertionError("it has not come true")
        time.sleep(0.02)


class GpuCheckTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.build, self.out = self.folder / "build", self.folder / "out"
        self.programs = self.folder / "path"  # Comes first in PATH.
        self.programs.mkdir()
        for name in ("slackline", "slackline_server", "slackline_worker"):
            self.write(self.build / "bin" / name, SLACKLINE)

    def write(self, path: pathlib.Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def does(self, job: str, what: str) -> None:
        (self.build / "bin" / f"{job}.does").write_text(what)

    def start(self, *flags: str) -> subprocess.Popen:
        process = subprocess.Popen(
            [str(CHECK), "--build", str(self.build), "--out", str(self.out), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env={**os.environ, "PATH": f"{self.programs}:{os.environ['PATH']}"},
        )
        self.addCleanup(process.stdout.close)
        return process

    def run_check(self, *flags: str) -> tuple[int, str]:
        process = self.start(*flags)
        said = process.stdout.read()
        return process.wait(), said

    def table(self) -> str:
        return (self.out / "table.txt").read_text()

    def logs(self) -> list[str]:
        return tarfile.open(fileobj=io.BytesIO((self.out / "logs.tgz").read_bytes())).getnames()

    def start_with_a_hang(self) -> tuple[subprocess.Popen, list[str], int]:
        """The check in the midst of its second step, what it has said, and a process of that step."""
        self.does("train-ssp", "hang")
        process = self.start("--cpu", "--no-build", "--only", "train-bsp,train-ssp,train-asp")
        said = []
        while not said or not said[-1].startswith("train-bsp"):
            said.append(process.stdout.readline())
            self.assertNotEqual(said[-1], "", said)
        child = self.build / "gpu-check" / "train-ssp" / "child"
        wait_until(lambda: child.exists() and child.read_text())
        return process, said, int(child.read_text())

    def test_rows_table_and_logs_are_there_when_a_step_ends(self) -> None:
        process, said, _ = self.start_with_a_hang()
        self.assertRegex(said[-1], r"^train-bsp +PASS +\d+ s  accuracy 0.900, 1000 examples/s, model abababababab\n")
        self.assertEqual(self.table().splitlines()[:3], [line.rstrip("\n") for line in said])
        self.assertRegex(
            self.table(), r"\ntrain-ssp +runs since \d\d:\d\d:\d\d; if this line stays, the check was ended here\n$"
        )
        logs = self.logs()
        for name in ("train-bsp.log", "train-bsp.textproto", "train-bsp/summary.json", "train-bsp/logs/worker-0.log"):
            self.assertIn(name, logs)
        self.assertEqual(sorted(file.name for file in self.out.iterdir()), ["logs.tgz", "table.txt"])
        process.terminate()
        process.wait()

    def test_a_signal_leaves_the_table_and_no_process(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            with self.subTest(number=number):
                process, _, child = self.start_with_a_hang()
                process.send_signal(number)
                said = process.stdout.read()
                self.assertEqual(process.wait(), 128 + number)
                self.assertFalse(alive(child))
                name = signal.Signals(number).name
                self.assertRegex(
                    said, rf"^train-ssp +LEFT OUT +\d+ s  ended by {name}\ntrain-asp +LEFT OUT +0 s  ended by {name}\n"
                )
                self.assertIn(
                    "2 of 3 rows that must be PASS are not: train-ssp (LEFT OUT), train-asp (LEFT OUT)\n", said
                )
                self.assertTrue(self.table().endswith(said), self.table())
                self.assertIn("train-ssp.log", self.logs())

    def test_a_kill_leaves_the_table_and_no_process(self) -> None:
        process, said, child = self.start_with_a_hang()
        process.kill()
        process.wait()
        wait_until(lambda: not alive(child))
        self.assertTrue(self.table().startswith("".join(said)), self.table())
        self.assertIn("train-bsp.log", self.logs())

    def test_what_does_not_fit_is_left_out(self) -> None:
        code, said = self.run_check("--cpu", "--no-build", "--only", "train-bsp,script-bsp,train-asp", "--budget", "30")
        self.assertEqual(code, 4, said)
        self.assertRegex(said, r"\ntrain-bsp +PASS ")
        self.assertRegex(said, r"\nscript-bsp +LEFT OUT +0 s  takes about 35 s, 2\d s are left\n")
        self.assertRegex(said, r"\ntrain-asp +PASS ")  # It is shorter.
        self.assertRegex(said, r"--cpu --build \S+/build --only script-bsp\n")
        self.assertTrue(said.endswith("1 of 3 rows that must be PASS are not: script-bsp (LEFT OUT)\n"), said)
        self.assertEqual(self.table(), said)

    def test_all_that_must_pass_has_passed(self) -> None:
        code, said = self.run_check("--cpu", "--no-build", "--only", "train-bsp,test-cuda_model,same-seed")
        self.assertEqual(code, 0, said)
        self.assertRegex(said, r"\ntest-cuda_model +SKIP +0 s  needs a GPU\n")
        self.assertTrue(said.endswith("all 2 rows that must be PASS are\n"), said)

    def test_what_fails_is_named(self) -> None:
        self.does("train-asp", json.dumps({"test_accuracy": None}))
        self.does("again-allreduce", json.dumps({"model_sha256": "cd" * 32}))
        code, said = self.run_check("--cpu", "--no-build", "--only", "train-asp,same-seed,kill-server,cost")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"\ntrain-asp +FAIL .*accuracy None: nothing was learned\n")
        self.assertRegex(said, r"\nsame-seed +FAIL .*model cdcd\w+ of the second run in allreduce is not abab")
        self.assertRegex(said, r"\nkill-server +FAIL .*not all workers came to step 20 while it ran")
        self.assertRegex(said, r"\ncost +FAIL .*was not built: python/slackline/_core\.\*\n")
        self.assertIn(
            "3 of 3 rows that must be PASS are not: same-seed (FAIL), kill-server (FAIL), train-asp (FAIL)\n", said
        )

    def test_a_missing_library_is_a_failure(self) -> None:
        self.write(self.programs / "nvidia-smi", "#!/bin/sh\n[ \"$1\" = -L ] && echo 'GPU 0: A GPU' || echo 9.0\n")
        python = "-- Python 3.12.3 with nanobind 3.1: the Python package is built (python3)"
        nccl = "-- NCCL 2.28.9: found, GPU workers all-reduce over it"
        no_nccl = "-- NCCL: nccl.h or libnccl was not found, which is fine; they train through servers"
        no_python = "-- Python package: not built; the headers of Python 3.12.3 were not found"
        for lines, result in (
            ([python, nccl], "PASS"),
            ([python, no_nccl], "FAIL .*NCCL: nccl.h or libnccl was not found"),
            ([no_python, nccl], "FAIL .*Python package: not built; the headers"),
        ):
            with self.subTest(result=result):
                said = "\n".join(lines)
                self.write(self.programs / "cmake", f"#!/bin/sh\necho \"$@\"\ncat <<'END'\n{said}\nEND\n")
                code, said = self.run_check("--only", "configure,train-bsp")
                self.assertRegex(said, rf"\nconfigure +{result}")
                self.assertEqual(code, 0 if result == "PASS" else 1, said)
                self.assertRegex(said, r"\ntrain-bsp +PASS")  # What can be tried is.
        log = (self.build / "gpu-check" / "configure.log").read_text()
        self.assertIn("-DSLACKLINE_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=90", log)

    def test_a_test_of_the_gpu_passes_only_if_it_ran(self) -> None:
        self.write(self.programs / "nvidia-smi", "#!/bin/sh\necho 'GPU 0: A GPU'\n")
        skipped = "a.cc:7: Skipped\nno GPU to run on: CUDA counts none\n\n[  SKIPPED ] Half.Rounds (0 ms)"
        for said, code, result in (
            ("[  PASSED  ] 12 tests.", 0, r"PASS +\d+ s  12 cases\n"),
            (f"{skipped}\n[  PASSED  ] 0 tests.", 0, r"FAIL +\d+ s  skipped: no GPU to run on: CUDA counts none\n"),
            ("[  FAILED  ] Half.Rounds (7 ms)", 1, r"FAIL +\d+ s  Half.Rounds \(exit code 1\)\n"),
        ):
            with self.subTest(result=result):
                self.write(
                    self.build / "tests" / "half_cuda_test", f"#!/bin/sh\ncat <<'END'\n{said}\nEND\nexit {code}\n"
                )
                got, table = self.run_check("--only", "test-half_cuda")
                self.assertRegex(table, rf"\ntest-half_cuda +{result}")
                self.assertEqual(got, 0 if result.startswith("PASS") else 1)

    def test_the_commit_and_its_files_come_from_what_travels(self) -> None:
        (self.folder / "usr" / "lib").mkdir(parents=True)
        (self.folder / "usr" / "lib" / "libzmq.so").write_text("")
        (self.folder / "COMMIT").write_text("abc123\n")
        sums = subprocess.check_output(["sha256sum", "tools/gpu_check.sh", "LICENSE"], cwd=SOURCE, text=True)
        for text, result in (
            (sums, r"PASS +\d+ s  commit abc123, "),
            (re.sub("^....", "0000", sums), "FAIL .* 1 files are not those of commit abc123, .*: tools/gpu_check.sh"),
        ):
            (self.folder / "COMMIT.sha256").write_text(text)
            _, said = self.run_check("--cpu", "--deps", str(self.folder), "--only", "environment")
            self.assertRegex(said, rf"\nenvironment +{result}")

    def test_a_build_that_fails_is_named_and_what_is_there_is_tried(self) -> None:
        self.write(self.build / "CMakeCache.txt", "CMAKE_GENERATOR:INTERNAL=Ninja\n")
        self.write(self.programs / "cmake", "#!/bin/sh\necho \"$@\"\necho 'a.cc:7:1: error: no such type'\nexit 1\n")
        code, said = self.run_check("--cpu", "--only", "build,train-bsp")
        self.assertEqual(code, 1)
        self.assertRegex(said, r"\nbuild +FAIL .*a.cc:7:1: error: no such type\n")
        self.assertRegex(said, r"\ntrain-bsp +PASS")
        self.assertIn("-- -k 0", (self.build / "gpu-check" / "build.log").read_text())

    def test_a_gpu_that_is_not_there_and_wrong_usage(self) -> None:
        self.write(self.programs / "nvidia-smi", "#!/bin/sh\nexit 9\n")
        if not list(pathlib.Path("/dev").glob("nvidia[0-9]*")):
            self.assertEqual(self.run_check()[0], 3)
        for flags in (["--only", "no-such-step"], ["--budget", "0"], ["--budget", "ten"], ["--no-such-flag"]):
            self.assertEqual(self.run_check(*flags)[0], 2, flags)

    def test_dry_run(self) -> None:
        code, said = self.run_check("--dry-run", "--budget", "300")
        self.assertEqual(code, 0)
        self.assertRegex(said, r"\nconfigure +must PASS +30 s ")
        self.assertIn("LEFT OUT", said)
        self.assertLessEqual(int(re.search(r"\nabout (\d+) s on 16", said)[1]), 300)
        self.assertFalse(self.out.exists())

    def test_a_command_ends_in_its_time_with_all_it_has_started(self) -> None:
        script = self.folder / "script.py"
        script.write_text(
            "import subprocess, time\ndef stands_here():\n    time.sleep(1000)\n"
            "print(subprocess.Popen(['sleep', '1000'], start_new_session=True).pid, flush=True)\nstands_here()\n"
        )
        for budget_end, by_budget in ((time.monotonic() + 1000, False), (time.monotonic() + 2, True)):
            with self.subTest(by_budget=by_budget), open(self.folder / "log", "w") as log:
                commands = processes.Commands(log, f"test-{os.getpid()}", dict(os.environ), 60, budget_end)
                with self.assertRaises(processes.OutOfTime) as error:
                    commands.run([sys.executable, script], 2)
                self.assertEqual(error.exception.by_budget, by_budget)
                commands.end(hung=True)
                text = (self.folder / "log").read_text()
                self.assertFalse(alive(int(text.splitlines()[1])), text)
                self.assertIn("in stands_here", text)

    def test_nccl_takes_each_worker_for_one_on_a_host_of_its_own(self) -> None:
        wrapper = CHECK.with_suffix("") / "own_host.sh"
        seen = {subprocess.check_output([wrapper, "sh", "-c", "echo $NCCL_HOSTID $0 $1", "a b", "c"]) for _ in range(2)}
        self.assertEqual(len(seen), 2)
        self.assertTrue(all(line.endswith(b" a b c\n") for line in seen), seen)

    def test_a_config_lets_all_workers_have_gpu_0(self) -> None:
        path = self.folder / "job.textproto"
        path.write_text(jobs.config("CUDA", 4, jobs.TEACHER + jobs.TRAIN))
        done = subprocess.run(
            [BIN / "slackline", "run", path, "--mode", "allreduce", "--dry-run"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("device: CUDA"), 4, done.stdout)

    def test_a_job_with_real_programs(self) -> None:
        self.build = BIN.parent
        code, said = self.run_check("--cpu", "--no-build", "--only", "train-bsp")
        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    unittest.main()
