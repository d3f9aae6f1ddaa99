"""The check of tools/gpu_check.sh, which says how it is called: runs steps, and keeps their table and their logs."""

import argparse
import math
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import traceback

import processes
import steps
from jobs import Failed, Jobs, Skipped

ROOT = steps.ROOT
# Within the budget: to end what runs, and to write table and logs.
RESERVE = 5
# What of a job's folder goes into the logs.
LOGS = (".json", ".jsonl", ".log", ".textproto")
LOG_BYTES_MAX = 1 << 20
DONE, FAILED, WRONG_USAGE, NO_GPU, NOT_ALL = range(5)

# NCCL over the loopback interface, and so few blocks of each rank that all ranks fit on one GPU at once: they wait
# for each other there. Jobs give each rank a host of its own (own_host.sh).
NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MAX_CTAS": "2",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_DEBUG": "WARN",
}


class Interrupted(Exception):
    """A step is over, because the check is to end."""


class Signals:
    """The first of the signals that end the check; the others are ignored from then on."""

    ALL = signal.SIGINT, signal.SIGTERM, signal.SIGHUP

    def __init__(self):
        self.got = None
        self.in_step = False
        for number in self.ALL:
            signal.signal(number, self._on_signal)

    def _on_signal(self, number, _):
        self.got = number
        self.ignore()
        if self.in_step:
            raise Interrupted

    def ignore(self):
        for number in self.ALL:
            signal.signal(number, signal.SIG_IGN)

    def __str__(self):
        return f"ended by {signal.Signals(self.got).name}"


class Check:
    """What steps know of the machine, the build and each other."""

    def __init__(self, args):
        self.device = "CPU" if args.cpu else "CUDA"
        self.processors = args.jobs
        self.build = args.build.resolve()
        self.deps = args.deps
        self.deps_libraries = None
        self.environment = {
            **os.environ,
            **NCCL,
            "TORCHINDUCTOR_CACHE_DIR": str(self.build / "inductor"),
            "TRITON_CACHE_DIR": str(self.build / "triton"),
        }
        self.commit = self._commit()
        self.commands = None  # Of the step that runs.
        self.jobs = None

    def _commit(self):
        if self.deps and (self.deps / "COMMIT").exists():
            return (self.deps / "COMMIT").read_text().strip()
        done = (
            subprocess.run(
                ["git", "describe", "--tags", "--always", "--dirty", "--abbrev=12"],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
            )
            if shutil.which("git")
            else None
        )
        return done.stdout.strip() if done and done.returncode == 0 else "unknown"

    def log_text(self):
        return pathlib.Path(self.commands.log.name).read_text(errors="replace")

    def cached(self, name):
        """A variable of CMake's cache, "" if it is not there."""
        try:
            lines = (self.build / "CMakeCache.txt").read_text().splitlines()
        except OSError:
            return ""
        return next((line.partition("=")[2] for line in lines if line.startswith(f"{name}:")), "")

    @property
    def python(self):
        """That of the package, which is the one with PyTorch."""
        return self.cached("_Python_EXECUTABLE") or sys.executable

    def nvcc(self):
        return shutil.which("nvcc", path=f"{self.environment.get('PATH', '')}:/usr/local/cuda/bin") or "nvcc"

    def use_deps(self):
        """The libraries of --deps, for the compiler, for CMake and for programs that run."""
        libraries = next(iter((self.deps / "usr" / "lib").rglob("libzmq.so")), None)
        if libraries is None:
            sys.exit(wrong_usage(f"--deps: there is no libzmq.so below {self.deps}/usr/lib"))
        self.deps_libraries = libraries.parent
        described, linked = self.build / "pkgconfig", self.build / "libraries"
        for folder in (described, linked):
            folder.mkdir(parents=True, exist_ok=True)
        # Packages believe that they are in /usr.
        for folder in (self.deps_libraries / "pkgconfig", self.deps / "usr" / "share" / "pkgconfig"):
            for file in folder.glob("*.pc"):
                (described / file.name).write_text(file.read_text().replace("=/usr", f"={self.deps}/usr"))
        # Programs that came with the machine keep its libraries.
        ldconfig = shutil.which("ldconfig", path=f"{os.environ.get('PATH', '')}:/sbin:/usr/sbin")
        of_the_machine = (
            subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout if ldconfig else ""
        )
        for file in (*self.deps_libraries.glob("*.so.*"), *(self.deps / "usr" / "lib").glob("*.so.*")):
            if f"{file.name} " not in of_the_machine and not (linked / file.name).exists():
                (linked / file.name).symlink_to(file)
        include = self.deps / "usr" / "include"
        for name, values in (
            ("PKG_CONFIG_PATH", [described]),
            ("LD_LIBRARY_PATH", [linked]),
            ("CPLUS_INCLUDE_PATH", [include, include / self.deps_libraries.name]),
        ):
            self.environment[name] = ":".join([*map(str, values), *filter(None, [os.environ.get(name)])])
        self.environment["PATH"] = f"{os.environ.get('PATH', '')}:{self.deps}/usr/bin"


def say(text):
    """On stdout, as long as somebody listens: the check goes on without."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Report:
    """table.txt and logs.tgz, which are whole at every moment, and the rows on stdout."""

    def __init__(self, out, work, head):
        self.rows = []  # (step, result)
        self._table, self._logs, self._work = out / "table.txt", out / "logs.tgz", work
        self._lines = [head, f"{'step':<22} {'result':<8} {'time':>6}"]
        say("\n".join(self._lines))
        self.write()

    def write(self, last=()):
        self._replace(self._table, lambda path: path.write_text("\n".join([*self._lines, *last]) + "\n"))

    def begins(self, step):
        self.write(
            [f"{step.name:<22} runs since {time.strftime('%H:%M:%S')}; if this line stays, the check was ended here"]
        )

    def row(self, step, result, seconds, note):
        line = f"{step.name:<22} {result:<8} {seconds:4.0f} s  {' '.join(note.split())[:300]}".rstrip()
        self.rows.append((step, result))
        self._lines.append(line)
        self.write()
        say(line)
        if result != "LEFT OUT" or seconds > 0:
            self._replace(self._logs, self._pack)

    def end(self, lines):
        self._lines += lines
        self.write()
        say("\n".join(lines))

    @staticmethod
    def _replace(path, write):
        new = path.with_name(f"{path.name}.new")
        write(new)
        new.replace(path)

    def _pack(self, path):
        with tarfile.open(path, "w:gz", compresslevel=6) as archive:
            for file in sorted(self._work.rglob("*")):
                inside = file.relative_to(self._work)
                try:
                    fits = file.is_file() and file.suffix in LOGS and file.stat().st_size <= LOG_BYTES_MAX
                    if fits and "checkpoints" not in inside.parts:
                        archive.add(file, inside)
                except OSError:
                    pass  # A job has just removed it.


def perform(check, step, work, mark, budget_end):
    """The result of a step, and what its row says."""
    log = work / f"{step.name}.log"
    missing = [need for need in step.needs if not any(check.build.glob(need))]
    if missing:
        return "FAIL", f"was not built: {', '.join(missing)}"
    hung = False
    with open(log, "w", encoding="utf-8") as file:
        check.commands = processes.Commands(file, mark, check.environment, step.seconds_max, budget_end)
        check.jobs = Jobs(check.build, work, check.commands)
        try:
            result, note = "PASS", step.run(check)
        except Skipped as why:
            result, note = "SKIP", str(why)
        except Failed as why:
            result, note = "FAIL", str(why)
        except processes.OutOfTime as why:
            hung = True
            result, note = ("LEFT OUT", f"{why}, and the budget is used up") if why.by_budget else ("FAIL", str(why))
        except Interrupted:
            hung = True
            raise
        except Exception as error:  # A fault of the check itself costs one row.
            check.commands.say(traceback.format_exc())
            result, note = "FAIL", f"{type(error).__name__}: {error}"
        finally:
            left = check.commands.end(hung)
    if left and not hung:
        note = f"{note}; {left} processes were left behind".lstrip("; ")
    if result == "FAIL":
        last = log.read_text(errors="replace").splitlines()[-5:]
        print("\n".join(f"   {line[:200]}" for line in last), file=sys.stderr, flush=True)
    return result, note


def about(check, step):
    """Seconds that a step takes here."""
    built = all(any(check.build.glob(need)) for need in steps.products(check))
    return 20 if step.name == "build" and built else step.seconds


def must_pass(check, step):
    return step.must == "PASS" or step.must == "PASS on GPUs" and check.device == "CUDA"


def run(args, check, wanted):
    begin = time.monotonic()
    budget_end = begin + args.budget - RESERVE if args.budget else math.inf
    args.out.mkdir(parents=True, exist_ok=True)
    work = check.build / "gpu-check"  # Of the last check; table and logs have what is worth keeping.
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    mark = f"{os.getpid()}-{int(time.time())}"
    guard = processes.guard(mark)
    budget = f", budget {args.budget} s" if args.budget else ""
    report = Report(
        args.out, work, f"gpu_check of commit {check.commit} at {time.strftime('%Y-%m-%d %H:%M:%S')}{budget}"
    )
    signals = Signals()
    for step in wanted:
        start = time.monotonic()
        if signals.got:
            report.row(step, "LEFT OUT", 0, str(signals))
        elif step.on_gpus and check.device == "CPU":
            report.row(step, "SKIP", 0, "needs a GPU")
        elif start + about(check, step) > budget_end:
            left = max(0, budget_end - start)
            report.row(step, "LEFT OUT", 0, f"takes about {about(check, step)} s, {left:.0f} s are left")
        else:
            report.begins(step)
            try:
                signals.in_step = True
                result, note = perform(check, step, work, mark, budget_end)
            except Interrupted:
                processes.kill_marked(mark)
                result, note = "LEFT OUT", str(signals)
            signals.in_step = False
            report.row(step, result, time.monotonic() - start, note)
    signals.ignore()
    guard.stdin.close()
    guard.wait()
    report.end(conclusion(args, check, report.rows))
    if signals.got:
        return 128 + signals.got
    if any(result == "FAIL" for _, result in report.rows):
        return FAILED
    missed = any(result == "LEFT OUT" or result == "SKIP" and must_pass(check, step) for step, result in report.rows)
    return NOT_ALL if missed else DONE


def conclusion(args, check, rows):
    lines = []
    rest = [step.name for step, result in rows if result == "LEFT OUT"]
    if rest:
        flags = "".join(f" {flag} {value}" for flag, value in (("--deps", args.deps), ("--build", args.build)) if value)
        lines.append(
            f"for the rest, with this build: tools/gpu_check.sh{' --cpu' if args.cpu else ''}{flags} --only {','.join(rest)}"
        )
    must = [(step.name, result) for step, result in rows if must_pass(check, step)]
    missed = [f"{name} ({result})" for name, result in must if result != "PASS"]
    if missed:
        lines.append(f"{len(missed)} of {len(must)} rows that must be PASS are not: {', '.join(missed)}")
    else:
        lines.append(f"all {len(must)} rows that must be PASS are")
    return lines


def show(args, check, wanted):
    left = args.budget - RESERVE if args.budget else math.inf
    total = 0
    for step in wanted:
        if step.on_gpus and check.device == "CPU":
            what = "SKIP"
        elif about(check, step) > left:
            what = "LEFT OUT"
        else:
            left -= about(check, step)
            total += about(check, step)
            what = "must PASS" if must_pass(check, step) else ""
        print(f"{step.name:<22} {what:<9} {about(check, step):4} s  {step.what}")
    print(f"about {total} s on 16 processors; table.txt and logs.tgz: {args.out}; work: {check.build}/gpu-check")


def has_gpu():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        listed = ""
    return any(line.startswith("GPU") for line in listed.splitlines()) or any(pathlib.Path("/dev").glob("nvidia[0-9]*"))


def help_text():
    lines = (ROOT / "tools" / "gpu_check.sh").read_text().splitlines()
    return "\n".join(line[2:] for line in lines[1 : lines.index("set -euo pipefail")])


def wrong_usage(text):
    print(f"gpu_check.sh: {text}; see --help", file=sys.stderr)
    return WRONG_USAGE


class Parser(argparse.ArgumentParser):
    def error(self, message):
        sys.exit(wrong_usage(message))


def seconds(text):
    value = int(text) if text.isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"value is {text}; a whole number of seconds, at least 1, is required")
    return value


def main():
    parser = Parser(add_help=False, allow_abbrev=False)
    parser.add_argument("--deps", type=pathlib.Path)
    parser.add_argument("--make-deps", type=pathlib.Path)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "gpu-check")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--only", type=lambda text: text.split(","))
    parser.add_argument("--budget", type=seconds)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("--help", "-h", action="store_true")
    args = parser.parse_args()
    if args.help:
        print(help_text())
        return DONE
    if args.make_deps:
        return subprocess.run([ROOT / "tools" / "gpu_check" / "make_deps.sh", args.make_deps.resolve()], check=False).returncode
    known = {step.name: step for step in steps.STEPS}
    unknown = [name for name in args.only or [] if name not in known]
    if unknown:
        return wrong_usage(f"--only: there is no step '{unknown[0]}', only {', '.join(known)}")
    wanted = [step for step in steps.STEPS if not args.only or step.name in args.only]
    if args.no_build:
        wanted = [step for step in wanted if step.name not in ("configure", "build")]
    args.out = args.out or ROOT / "runs" / time.strftime("gpu-check-%Y%m%d-%H%M%S")
    args.deps = args.deps.resolve() if args.deps else None
    check = Check(args)
    if args.dry_run:
        show(args, check, wanted)
        return DONE
    if check.device == "CUDA" and not has_gpu():
        print(
            "gpu_check.sh: no GPU on this machine: nvidia-smi shows none, and there is no /dev/nvidia0\n"
            "gpu_check.sh: nothing was built; --dry-run shows what would be done, --cpu does on the CPU what can be",
            file=sys.stderr,
        )
        return NO_GPU
    if args.deps:
        check.use_deps()
    return run(args, check, wanted)


if __name__ == "__main__":
    sys.exit(main())
