"""What is checked: one entry of STEPS for each row of the table, in the order of their value.

A step is a function of a Check (check.py). It returns what its row says, raises Failed or Skipped with the
reason, and may leave commands behind, which are ended for it.
"""

import dataclasses
import json
import pathlib
import re
import shutil
from typing import Callable, Tuple

from jobs import PATIENCE, SHORT_LEASE, SLOW, SUSPENDED, TEACHER, TRAIN, Failed, Skipped, config

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tools" / "gpu_check"
PROGRAM_SECONDS_MAX = 75  # Of one test, benchmark or kernel test under a sanitizer.


# ---- The machine and the build -------------------------------------------------


def environment(c):
    for command in (
        ["nvidia-smi"],
        ["uname", "-a"],
        ["cmake", "--version"],
        ["c++", "--version"],
        [c.nvcc(), "--version"],
    ):
        c.commands.run(command, 20)
    torch = c.commands.output_of([c.python, "-c", "import torch; print(torch.__version__)"], 60).strip()
    gpu = c.commands.output_of(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"])
    said = [f"commit {c.commit}", *gpu.splitlines()[:1], f"PyTorch {torch}" if torch else f"no PyTorch in {c.python}"]
    sums = c.deps / "COMMIT.sha256" if c.deps else None
    if sums and sums.exists():
        if c.commands.run(["sha256sum", "--check", "--quiet", sums], 60, cwd=ROOT) != 0:
            other = re.findall(r"^(.+): FAILED", c.log_text(), re.MULTILINE)
            raise Failed(
                f"{len(other)} files are not those of commit {c.commit}, call --make-deps again: {', '.join(other)}"
            )
    return ", ".join(said)


def configure(c):
    words = [
        "cmake",
        "-S",
        ROOT,
        "-B",
        c.build,
        "-DCMAKE_BUILD_TYPE=Release",
        f"-DSLACKLINE_COMMIT_WITHOUT_GIT={c.commit}",
    ]
    if shutil.which("ninja") and not (c.build / "CMakeCache.txt").exists():
        words += ["-G", "Ninja"]
    prefixes = [c.deps / "usr"] if c.deps else []
    if c.deps_libraries:
        words.append(f"-DCMAKE_LIBRARY_PATH={c.deps_libraries}")
    if c.device == "CUDA":
        words.append("-DSLACKLINE_CUDA=ON")
        found = c.commands.output_of(["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"])
        architectures = sorted(set(found.replace(".", "").split()))
        if architectures and all(a.isdigit() for a in architectures):
            words.append(f"-DCMAKE_CUDA_ARCHITECTURES={';'.join(architectures)}")
        # A PyTorch from PyPI brings NCCL as a package of its own.
        nccl = c.commands.output_of(
            ["python3", "-c", "import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])"]
        ).strip()
        prefixes += [nccl] if nccl else []
        # The package for the Python whose PyTorch has CUDA, if that can build it.
        if c.commands.run(["python3", "-c", "import nanobind, torch"], 60) == 0:
            words.append(f"-DPython_EXECUTABLE={shutil.which('python3')}")
    if prefixes:
        prefixes += filter(None, [c.environment.get("CMAKE_PREFIX_PATH")])
        words.append(f"-DCMAKE_PREFIX_PATH={';'.join(map(str, prefixes))}")
    code = c.commands.run(words, 90)
    said = c.log_text()
    if code != 0:
        error = re.search(r"CMake Error.*\n\s*(.*)", said)
        raise Failed(error[1] if error else c.commands.last_line())
    # CMake does without them; a check cannot.
    wanted = [("Python package", r"^-- Python .*: the Python package is built.*")]
    if c.device == "CUDA":
        wanted.append(("NCCL", r"^-- NCCL [\d.]+: found.*"))
    missing = []
    for name, line in wanted:
        if not re.search(line, said, re.MULTILINE):
            why = re.search(rf"^-- ({name}: .*)", said, re.MULTILINE)
            missing.append(why[1] if why else f"{name} is missing")
    if missing:
        raise Failed("; ".join(missing))
    return ""


def products(c):
    found = ["bin/slackline", "bin/slackline_server", "bin/slackline_worker"]
    if c.device == "CUDA":
        found += [f"tests/{test}" for test in GPU_TESTS] + ["bin/bench_apply_gpu", "bin/bench_allreduce"]
    return found


def build(c):
    """What can be built is, also if something cannot: the rows that need nothing else are tried."""
    targets = ["slackline", "slackline_server", "slackline_worker", "slackline_python"]
    if c.device == "CUDA":
        known = c.commands.output_of(["cmake", "--build", c.build, "--target", "help"])
        for target in ("slackline_gpu_tests", "bench_apply_gpu", "bench_allreduce"):
            if re.search(rf"(^|[ /]){target}(:|$)", known, re.MULTILINE):
                targets.append(target)
    go_on = ["-k", "0"] if "Ninja" in c.cached("CMAKE_GENERATOR") else ["-k"]
    command = ["cmake", "--build", c.build, "--parallel", str(c.processors), "--target", *targets, "--", *go_on]
    if c.commands.run(command, BUILD_SECONDS_MAX) != 0:
        error = re.search(r"^.*\berror: .*|^.*\bundefined reference.*", c.log_text(), re.MULTILINE)
        raise Failed(error[0] if error else c.commands.last_line())
    missing = [product for product in products(c) if not (c.build / product).exists()]
    if missing:
        raise Failed(f"was not built: {', '.join(missing)}")
    return f"{c.processors} jobs"


# ---- Programs ------------------------------------------------------------------

GPU_TESTS = ("optimizer_cuda_test", "half_cuda_test", "cuda_parameters_test", "cuda_model_test", "nccl_collective_test")


def gpu_test(name):
    def run(c):
        code = c.commands.run([c.build / "tests" / name], PROGRAM_SECONDS_MAX)
        said = c.log_text()
        if code != 0:
            failed = re.findall(r"^\[  FAILED  \] (\S+\.\S+?),? ", said, re.MULTILINE)
            raise Failed(f"{', '.join(dict.fromkeys(failed[:3])) or c.commands.last_line()} (exit code {code})")
        # There is a GPU, so nothing may say that there is none.
        skipped = re.search(r"Skipped\n(.*)|^\[  SKIPPED \] (.*)", said, re.MULTILINE)
        if skipped:
            raise Failed(f"skipped: {skipped[1] or skipped[2]}")
        passed = re.search(r"^\[  PASSED  \] (\d+) test", said, re.MULTILINE)
        return f"{passed[1]} cases" if passed else ""

    return run


def sanitizer(tool):
    def run(c):
        program = shutil.which("compute-sanitizer", path=f"{c.environment.get('PATH', '')}:/usr/local/cuda/bin")
        if program is None:
            raise Skipped("no compute-sanitizer here")
        failed = []
        for test in ("optimizer_cuda_test", "half_cuda_test"):
            code = c.commands.run(
                [
                    program,
                    "--tool",
                    tool,
                    "--error-exitcode",
                    "99",
                    c.build / "tests" / test,
                    "--gtest_filter=-*MoreElementsThanThreads*",
                ],
                PROGRAM_SECONDS_MAX,
            )
            failed += [test] if code != 0 else []
        if "Device not supported" in c.log_text():
            raise Skipped("refuses this GPU")
        if failed:
            raise Failed(f"{', '.join(failed)}: {c.commands.last_line()}")
        return ""

    return run


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def bench_apply(c):
    out = c.commands.output_of(
        [
            c.build / "bin" / "bench_apply_gpu",
            "--optimizers",
            "sgd,momentum,adam",
            "--gradients",
            "1",
            "--elements",
            "1048576,16777216",
            "--repeats",
            "9",
        ],
        PROGRAM_SECONDS_MAX,
    )
    c.commands.say(out)
    lines = [line for line in json_lines(out) if line["elements"] == 16777216]
    if len(lines) != 3:
        raise Failed(c.commands.last_line())
    rates = [f"{line['optimizer']} {line['ratio_to_copy']['median']:.2f}" for line in lines]
    return f"of a copy's bandwidth ({lines[0]['copy_gigabytes_per_second']['median']:.0f} GB/s): {', '.join(rates)}"


def bench_allreduce(c):
    """Over sockets, as all ranks are on one GPU: no figures of NCCL's speed."""
    out = c.commands.output_of(
        [
            c.build / "bin" / "bench_allreduce",
            "--transports",
            "nccl",
            "--ranks",
            "2",
            "--bytes",
            "64KiB,1MiB,16MiB",
            "--repeats",
            "5",
        ],
        PROGRAM_SECONDS_MAX,
    )
    c.commands.say(out)
    lines = json_lines(out)
    if len(lines) != 3:
        raise Failed(c.commands.last_line())
    return "NCCL's time over ours: " + ", ".join(
        f"{line['bytes'] >> 10} KiB {line['ratio_to_raw']['median']:.2f}" for line in lines
    )


# ---- Jobs of the built-in model ----------------------------------------------------


def trained(summary):
    """What a row says of a job. Untrained, the model is right for one example in ten."""
    accuracy = summary["test_accuracy"]
    if accuracy is None or not accuracy >= 0.5:
        raise Failed(f"accuracy {accuracy}: nothing was learned")
    return f"accuracy {accuracy:.3f}, {summary['examples_per_second']:.0f} examples/s, model {summary['model_sha256'][:12]}"


def same(name, summary, other_name, other):
    if summary["model_sha256"] != other["model_sha256"]:
        raise Failed(
            f"model {summary['model_sha256'][:12]} of {name} is not {other['model_sha256'][:12]} of {other_name}"
        )
    return f"model {summary['model_sha256'][:12]} as {other_name}"


def plain(c, mode, name=None):
    """The job that others are compared with: the same in each step that asks for it."""
    name = name or "train-" + mode.partition(":")[0]
    return c.jobs.run(name, config(c.device, 2, TEACHER + TRAIN), "--mode", mode)


def train(mode):
    return lambda c: trained(plain(c, mode))


def train_phases(c):
    phases = """sync {
  phase { allreduce {} until_epoch: 0.5 }
  phase { ssp { staleness: 3 } until_epoch: 1 }
  phase { allreduce {} until_epoch: 1.5 }
  phase { bsp {} }
}
"""
    summary = c.jobs.run("train-phases", config(c.device, 2, TEACHER.replace("sync { bsp {} }\n", phases) + TRAIN))
    if summary["mode_changes"] != 3:
        raise Failed(f"{summary['mode_changes']} changes of mode, 3 were to happen")
    return trained(summary) + ", 3 changes of mode"


def ranks_4(c):
    return trained(c.jobs.run("ranks-4", config(c.device, 4, TEACHER + TRAIN), "--mode", "allreduce", "--epochs", "1"))


def same_seed(c):
    said = []
    for mode in ("bsp", "allreduce"):
        first, again = plain(c, mode), plain(c, mode, f"again-{mode}")
        said.append(same(f"the second run in {mode}", again, f"the first in {mode}", first))
    return ", ".join(said)


def kill_worker(mode):
    def run(c):
        name = f"kill-worker-{mode}"
        text = config(
            c.device, 3, TEACHER + "train { epochs: 10 max_steps: 300 seed: 1 }\n", conditions=SLOW, limits=SHORT_LEASE
        )
        job = c.jobs.start(name, text, "--mode", mode)
        c.jobs.kill(name, job, "worker", 1)
        summary = c.jobs.wait(name, job)
        if not any("worker 1" in lost for lost in summary["workers_lost"]):
            raise Failed(f"worker 1 was killed, and lost are: {summary['workers_lost']}")
        return trained(summary)

    return run


def kill_server(c):
    undisturbed = plain(c, "bsp")
    text = config(
        c.device,
        2,
        TEACHER + TRAIN + "replicas: 1\n",
        servers=3,
        conditions=SLOW,
        limits=f"{SHORT_LEASE} shard_kib: 16",
    )
    job = c.jobs.start("kill-server", text, "--mode", "bsp")
    c.jobs.kill("kill-server", job, "server", 1)
    summary = c.jobs.wait("kill-server", job)
    if not any("server 1" in lost for lost in summary["servers_lost"]):
        raise Failed(f"server 1 was killed, and lost are: {summary['servers_lost']}")
    if not summary["shards_taken_over"]:
        raise Failed("no shard of server 1 was taken over")
    return f"{same('kill-server', summary, 'train-bsp', undisturbed)}, {summary['shards_taken_over']} shards taken over"


def stop_and_go_on(c, name, text, *flags, script=()):
    """The summary of a job that goes on from the checkpoint with which another one was stopped in its midst."""
    first = f"{name}-first"
    job = c.jobs.start(first, text, *flags, script=script)
    c.jobs.status_at(first, job, 20)
    c.jobs.commands.run([c.build / "bin" / "slackline", "stop", c.jobs.folder(first), "--checkpoint"], 30)
    c.jobs.wait(first, job, code=SUSPENDED)
    second = c.jobs.run(f"{name}-second", text, *flags, "--resume", c.jobs.folder(first), script=script)
    if not (second.get("resumed_from") or {}).get("clock"):
        raise Failed("the second job began anew")
    return second


def resume(c):
    undisturbed = plain(c, "bsp")
    text = config(c.device, 2, TEACHER + TRAIN + "checkpoint {}\n", conditions=SLOW, limits=SHORT_LEASE)
    second = stop_and_go_on(c, "resume", text, "--mode", "bsp")
    return f"{same('resume', second, 'train-bsp', undisturbed)}, from step {second['resumed_from']['clock']}"


# ---- Jobs of scripts ---------------------------------------------------------------


def script_job(
    c, name, mode, script, *arguments, device=None, workers=2, rest="train { seed: 1 }\n", patience=PATIENCE, limits=""
):
    device = device or c.device
    text = config(device, workers, rest, servers=1, patience=patience, limits=limits)
    summary = c.jobs.run(name, text, "--mode", mode, script=[c.python, script, *arguments])
    on_gpu(c, name, device)
    return summary


def on_gpu(c, name, device):
    """Else the parameters went through the host."""
    if device == "CUDA" and not re.search(r"; on cuda:0$", c.jobs.log_of(name), re.MULTILINE):
        raise Failed(f"{name}: the parameters were not on the GPU, see {name}/logs/worker-0.log")


def close(summary, other_name, other, part):
    loss, wanted = summary["test_loss"], other["test_loss"]
    if loss is None or wanted is None:
        raise Failed(f"test loss {loss}, {other_name} {wanted}")
    text = f"test loss {loss:.4f}, {other_name} {wanted:.4f}"
    if not abs(loss / wanted - 1) <= part:
        raise Failed(f"{text}: they differ by more than {part:.0%}")
    return text


def script(mode):
    """examples/python/gpu.py ends near where it ends on the CPU."""

    def run(c):
        example = ROOT / "examples" / "python" / "gpu.py"
        summary = script_job(c, f"script-{mode}", mode, example)
        on_cpu = script_job(c, f"script-{mode}-cpu", mode, example, device="CPU")
        return close(summary, "on the CPU", on_cpu, 0.02)

    return run


def pytorch(c):
    found = re.match(r"\d+", c.commands.output_of([c.python, "-c", "import torch; print(torch.__version__)"], 60))
    if not found:
        raise Failed(f"{c.python} has no PyTorch")
    return int(found[0])


def habit(habits, mode, part):
    """A script with habits, as flags of habits.py, ends near where it ends without them."""

    def run(c):
        wanted = habits.split()
        said = ""
        if "compile" in wanted and pytorch(c) < 2:
            if len(wanted) == 1:
                raise Skipped("torch.compile needs PyTorch 2")
            wanted.remove("compile")
            said = ", without torch.compile, which needs PyTorch 2"
        plain_job = script_job(c, f"habits-{mode}", mode, SCRIPTS / "habits.py")
        name = "-".join(["habits", mode, *(word.partition("=")[0] for word in wanted)])
        flags = [f"--{word}" for word in wanted]
        summary = script_job(c, name, mode, SCRIPTS / "habits.py", *flags, patience=75)
        return close(summary, "without", plain_job, part) + said

    return run


def script_resume(c):
    """By all-reduce, with masks of dropout and a scheduler, so that all that a checkpoint keeps counts."""
    rest = "train { seed: 1 }\ncheckpoint {}\n"
    whole = script_job(c, "script-whole", "allreduce", SCRIPTS / "resumed.py", rest=rest, limits=SHORT_LEASE)
    text = config(c.device, 2, rest, servers=1, limits=SHORT_LEASE)
    second = stop_and_go_on(c, "script-resume", text, "--mode", "allreduce", script=[c.python, SCRIPTS / "resumed.py"])
    on_gpu(c, "script-resume-second", c.device)
    return (
        f"{same('script-resume', second, 'a run without a stop', whole)}, from step {second['resumed_from']['clock']}"
    )


def cost(c):
    """A worker of its own: no other one takes the GPU from it, or from the plain loop."""
    said = []
    for size, hidden in (("small", 512), ("large", 4096 if c.device == "CUDA" else 1024)):
        name = f"cost-{size}"
        script_job(c, name, "bsp", SCRIPTS / "cost.py", str(hidden), "200" if c.device == "CUDA" else "60", workers=1)
        found = json.loads((c.jobs.folder(name) / "cost.json").read_text())
        before, after = found["plain_ms"]
        said.append(
            f"{found['parameters'] / 1e6:.1f} M parameters: plain {before:.2f} and {after:.2f} ms, over servers "
            f"{found['servers_ms']:.2f} ms ({2 * found['servers_ms'] / (before + after):.2f} times)"
        )
    return "; ".join(said)


# ---- All of them ---------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    run: Callable
    what: str
    seconds: int  # About, on a machine with 16 processors.
    seconds_max: int  # It has hung.
    must: str = ""  # "PASS": it has to be that. "PASS on GPUs": not with --cpu.
    on_gpus: bool = False  # With --cpu there is nothing to do.
    needs: Tuple[str, ...] = ()  # Below the build folder.


BUILD_SECONDS_MAX = 480
JOB = ("bin/slackline", "bin/slackline_server", "bin/slackline_worker")
SCRIPT = ("bin/slackline", "bin/slackline_server", "python/slackline/_core.*")


def _of_test(name, what, seconds):
    """A program of tests/gpu."""
    name, needs = name.replace("_test", ""), (f"tests/{name}",)
    return Step(f"test-{name}", gpu_test(f"{name}_test"), what, seconds, 80, "PASS on GPUs", True, needs)


def _of_tool(tool, what):
    what, needs = f"kernel tests under compute-sanitizer: {what}", ("tests/optimizer_cuda_test", "tests/half_cuda_test")
    return Step(tool, sanitizer(tool), what, 40, 2 * PROGRAM_SECONDS_MAX, on_gpus=True, needs=needs)


def _of_job(name, run, what, seconds, jobs=1, needs=JOB, must="PASS"):
    return Step(name, run, what, seconds, 30 + 80 * jobs, must, needs=needs)


def _of_script(name, run, what, seconds, jobs=2, must="PASS"):
    return _of_job(name, run, what, seconds, jobs, SCRIPT, must)


def _of_benchmark(name, run, what, program):
    return Step(name, run, what, 25, 80, on_gpus=True, needs=(f"bin/{program}",))


STEPS = (
    Step("environment", environment, "versions, and whether the files are those of the commit", 25, 90),
    Step("configure", configure, "cmake, for this machine's GPUs; NCCL and Python have to be found", 30, 150, "PASS"),
    Step("build", build, "programs, Python package, what needs a GPU", 200, BUILD_SECONDS_MAX, "PASS"),
    _of_test("optimizer_cuda_test", "updates on the GPU have the bits of the CPU's", 10),
    _of_test("half_cuda_test", "rounding to 16 bits, and back", 5),
    _of_test("cuda_parameters_test", "transfers of parameters keep their order", 5),
    _of_test("cuda_model_test", "models on the GPU against the CPU", 15),
    _of_test("nccl_collective_test", "NCCL's ranks agree, and notice a lost one", 40),
    _of_job("train-bsp", train("bsp"), "2 workers on GPU 0, mode bsp", 15),
    _of_job("train-allreduce", train("allreduce"), "2 workers on GPU 0, mode allreduce, by NCCL", 25),
    _of_script("script-bsp", script("bsp"), "examples/python/gpu.py on GPU 0 against the CPU, in bsp", 35),
    _of_script("script-allreduce", script("allreduce"), "the same in allreduce", 40),
    _of_job("same-seed", same_seed, "a second run of one seed has the same model, in bsp and allreduce", 30, 4),
    _of_job("kill-server", kill_server, "kill -9 of a server with replicas: 1: the model stays the same", 20, 2),
    _of_job("kill-worker-bsp", kill_worker("bsp"), "kill -9 of one of 3 workers in bsp: the others complete", 15),
    _of_job("kill-worker-allreduce", kill_worker("allreduce"), "the same in allreduce", 20),
    _of_job("resume", resume, "a stop with a checkpoint, and a job that goes on: the model stays the same", 25, 3),
    _of_script("script-resume", script_resume, "the same of a script with dropout, in allreduce", 45, 3),
    _of_job("train-phases", train_phases, "allreduce, ssp, allreduce and bsp in one job", 20),
    _of_script("script-compile", habit("compile", "bsp", 0.02), "torch.compile against none", 50, must="PASS on GPUs"),
    _of_script("script-autocast", habit("autocast", "bsp", 0.1), "bfloat16 autocast against none", 30),
    _of_script("script-accumulate", habit("accumulate=4", "bsp", 0.1), "4 batches in a step, against one", 15),
    _of_script("cost", cost, "a step over servers beside a plain loop of PyTorch on the same GPU", 40, must=""),
    _of_tool("racecheck", "races in shared memory"),
    _of_tool("memcheck", "accesses outside"),
    _of_job("train-ssp", train("ssp:3"), "2 workers on GPU 0, mode ssp:3", 12),
    _of_job("train-asp", train("asp"), "2 workers on GPU 0, mode asp", 12),
    _of_job("ranks-4", ranks_4, "all-reduce of 4 NCCL ranks that share GPU 0", 30),
    _of_script("script-all", habit("compile autocast accumulate=4", "allreduce", 0.1), "all three, in allreduce", 55),
    _of_benchmark("bench-apply", bench_apply, "an update against a copy in the GPU's memory", "bench_apply_gpu"),
    _of_benchmark("bench-allreduce", bench_allreduce, "all-reduce by us against NCCL itself", "bench_allreduce"),
    _of_tool("initcheck", "memory that is read before it is written"),
)
