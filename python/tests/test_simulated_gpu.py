"""Jobs on a simulated GPU end with the bits of the same jobs on the CPU.

Its streams run in random order where no event ties them together, and memory begins as NaN: what is used
before it is there, let go too early or overtaken makes other bits.
"""

import json
import pathlib
import re

import pytest
import torch
from support import BIN, CONFIG, USUAL, run_job

from slackline import _core

LIBRARY = BIN.parent / "tests/libslackline_simulated_gpu.so"
pytestmark = [
    pytest.mark.skipif(not _core.has_gpu_code, reason="this build has no GPU code"),
    pytest.mark.skipif(torch.version.cuda is not None, reason="PyTorch has a CUDA of its own"),
]
ON_GPUS = CONFIG.replace("count: 2", "count: 2 device: CUDA")
# Other parameters than the GPU's own memory.
OF_DOUBLES = (
    USUAL.replace("job.model(make())", "job.model(make().double())")
    .replace("net(x)", "net(x.double())")
    .replace("net(data.tensors[0])", "net(data.tensors[0].double())")
)
PHASES = """
sync {
  phase { allreduce {} until_epoch: 0.5 }
  phase { bsp {} until_epoch: 1 }
  phase { allreduce {} until_epoch: 1.5 }
  phase { bsp {} }
}
"""


def on_gpus(folder, script, *flags, config=ON_GPUS, fails_at=None):
    """The job of the script, with a simulated GPU for each worker."""
    (folder / "nccl").mkdir()
    (folder / "script.py").write_text(script)
    harness = pathlib.Path(__file__).with_name("simulated_gpu.py")
    start = f"""
import os, sys
os.environ.update(LD_PRELOAD={str(LIBRARY)!r}, SIMULATED_NCCL_DIR={str(folder / "nccl")!r})
{"" if fails_at is None else f"os.environ['SIMULATED_CUDA_FAILS_AT'] = '{fails_at}'"}
os.execv(sys.executable, [sys.executable, {str(harness)!r}, {str(folder / "script.py")!r}])
"""
    run = run_job(folder, start, *flags, config=config)
    if run.code == 0:  # Loads and copies of each step, and more by all-reduce.
        assert int(re.search(r"(\d+) operations of the simulated GPU", run.log(1))[1]) > 1000
    return run


def same_on_cpus(folder, script, *flags, config=CONFIG):
    return run_job(folder, script, *flags, config=config, name="cpus").succeeded()


@pytest.mark.parametrize("script", [USUAL, OF_DOUBLES], ids=["float32", "float64"])
@pytest.mark.parametrize("mode", ["bsp", "allreduce"])
def test_the_bits_are_those_of_the_cpu(tmp_path, mode, script):
    run = on_gpus(tmp_path, script, "--mode", mode).succeeded()
    cpus = same_on_cpus(tmp_path, script, "--mode", mode)
    assert run.summary["model_sha256"] == cpus.summary["model_sha256"]
    assert run.records("eval") and [r["accuracy"] for r in run.records("eval")] == [
        r["accuracy"] for r in cpus.records("eval")
    ]


# Three slots, and a momentum that travels with each gradient.
CYCLING = USUAL.replace(
    "SGD(net.parameters(), lr=0.1, momentum=0.9))",
    "RMSprop(net.parameters(), lr=0.001, momentum=0.9, centered=True))\n"
    "cycle = torch.optim.lr_scheduler.OneCycleLR(opt, 0.003, total_steps=1000)",
).replace("opt.step()", "opt.step(); cycle.step()")


@pytest.mark.parametrize("script", [USUAL, CYCLING], ids=["usual", "cycling"])
def test_also_through_changes_of_the_mode(tmp_path, script):
    run = on_gpus(tmp_path, script, config=ON_GPUS + PHASES).succeeded()
    cpus = same_on_cpus(tmp_path, script, config=CONFIG + PHASES)
    assert run.summary["mode_changes"] == cpus.summary["mode_changes"] == 3
    assert run.summary["model_sha256"] == cpus.summary["model_sha256"]


def test_gradients_that_leave_after_backward(tmp_path):
    script = USUAL.replace("momentum=0.9))", "momentum=0.9), overlap=False)")
    assert script != USUAL
    run = on_gpus(tmp_path, script).succeeded()
    assert run.summary["model_sha256"] == same_on_cpus(tmp_path, USUAL).summary["model_sha256"]


def test_rounded_gradients(tmp_path):
    run = on_gpus(tmp_path, USUAL, config=ON_GPUS + "sync { push_type: BFLOAT16 }\n").succeeded()
    assert run.summary["test_accuracy"] > 0.8
    assert run.summary["model_sha256"] != same_on_cpus(tmp_path, USUAL).summary["model_sha256"]


def test_a_gradient_too_large_for_float16_ends_the_job_with_its_name(tmp_path):
    script = USUAL.replace("loss.backward()", "(1e6 * loss).backward()")
    run = on_gpus(tmp_path, script, config=ON_GPUS + "sync { push_type: FLOAT16 }\n")
    assert run.code == 1
    assert re.search("the gradient of '.*': a number is beyond float16's largest", run.output)


@pytest.mark.parametrize("mode", ["bsp", "allreduce"])
def test_a_gpu_that_fails_ends_the_job_with_what_it_did(tmp_path, mode):
    run = on_gpus(tmp_path, USUAL, "--mode", mode, fails_at=300)
    assert run.code == 1
    assert re.search(r"(to|from|within) the (GPU|host) on GPU \d: a simulated error", run.output)


def test_a_killed_worker_is_survived_by_all_reduce(tmp_path):
    """The others sum the gradients of that step once more; they are on the GPU still."""
    script = USUAL.replace(
        "opt.step()", "opt.step()\n        if job.rank == 0 and job.steps == 9: __import__('os').kill(__import__('os').getpid(), 9)"
    )
    config = ON_GPUS.replace("count: 2", "count: 3") + "limits { lease_ms: 1000 }\n"
    run = on_gpus(tmp_path, script, "--mode", "allreduce", config=config).succeeded()
    assert "worker 0" in run.summary["workers_lost"][0]
    assert run.summary["test_accuracy"] > 0.7


def test_a_worker_whose_copies_to_the_host_become_slow_is_named(tmp_path):
    """In step 60, for 60 steps: each of its copies takes 10 ms. After 20 of these steps `status` names it."""
    script = (
        USUAL.replace("epochs(2)", "epochs(12)").replace(
            "opt.step()",
            """opt.step()
        if job.rank == 1 and job.steps in (60, 120):
            ctypes.CDLL(None).slackline_simulated_copy_to_host_takes(10 if job.steps == 60 else 0)
        if job.rank == 0 and job.steps == 80:
            text = subprocess.check_output(["SLACKLINE", "status", "CONFIG", "--json"])
            print("status", json.dumps(json.loads(text)["straggler"]), flush=True)""",
        )
        + "\n"
    )
    script = "import ctypes, json, subprocess\n" + script.replace("SLACKLINE", str(BIN / "slackline")).replace(
        "CONFIG", str(tmp_path / "run" / "cluster.textproto")
    )
    config = ON_GPUS.replace("count: 2", "count: 3") + "limits { lease_ms: 1000 }\n"
    run = on_gpus(tmp_path, script, config=config).succeeded()
    status = json.loads(re.search("status (.*)", run.log(0))[1])
    assert [s["phase"] for s in status if s.get("rank") == 1] == ["pushing"], status
    # It is the copies: computing is what it was, and the others wait.
    phases = [worker["phase_seconds"] for worker in run.summary["worker"]]
    assert phases[1]["pushing"] > phases[0]["pushing"] + 60 * 0.01
    assert min(phases[0]["waiting"], phases[2]["waiting"]) > phases[1]["waiting"] + 60 * 0.01
    assert any(re.match("worker 1 is .*: pushing takes", said) for said in run.summary["stragglers"])
