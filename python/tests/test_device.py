"""The device that the config gives a worker, where there is no GPU."""

import pathlib
import re
import sys

import pytest
import torch
from support import BIN, CONFIG, USUAL, Run, run, run_alone, run_job

from slackline import _core
from slackline._tensors import devices
from slackline._model.tables import Tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
CUDA_CONFIG = CONFIG.replace("count: 2", "count: 2 device: CUDA")
# Scripts of a build without GPU code, and of a PyTorch that takes the CPU for a GPU.
NO_GPU_CODE = """
import torch
from slackline import _core
from slackline._tensors import devices
_core.has_gpu_code = False
devices.of_worker = lambda rank, gpu: torch.device("cpu")
"""


def test_it_is_the_cpu_alone_and_where_the_config_says_nothing(tmp_path):
    script = USUAL.replace("job.model(make())", "job.model(make().to(job.device))") + "\nprint(f'device {job.device!r}')\n"
    said = "device device(type='cpu')"
    assert said in run_alone(tmp_path, script).succeeded().output
    run = run_job(tmp_path, script).succeeded()
    assert all(said in run.log(rank) for rank in (0, 1))


@without_gpu
def test_a_gpu_that_is_not_there_ends_the_job_at_its_start(tmp_path):
    run = run_job(tmp_path, USUAL, config=CUDA_CONFIG)
    assert run.code == 1
    for rank in (0, 1):
        assert f"ValueError: worker {rank}: the config gives it GPU {rank} (device: CUDA)" in run.log(rank)
        assert "or use device: CPU" in run.log(rank)
    assert "use device: CPU" in run.output


def test_the_command_of_the_document(tmp_path):
    """With two GPUs it trains; elsewhere it says what is missing."""
    command = "slackline run examples/python/gpu.textproto -- python3 examples/python/gpu.py"
    assert re.search(f"^{command}( |$)", (ROOT / "docs/manual/gpu.md").read_text(), re.MULTILINE)
    script = [sys.executable, str(ROOT / "examples/python/gpu.py")]
    config = str(ROOT / "examples/python/gpu.textproto")
    ended = run([str(BIN / "slackline"), "run", config, "--out", "run", "--", *script], tmp_path)
    if torch.cuda.device_count() >= 2:
        assert Run(ended.succeeded(), tmp_path / "run").summary["test_accuracy"] > 0.6
    else:
        assert ended.code == 1
        assert "the config gives it GPU" in ended.output


def test_what_is_missing_is_said(monkeypatch):
    def said():
        with pytest.raises(ValueError) as error:
            devices.of_worker(3, 1)
        return str(error.value)

    assert devices.of_worker(3, None) == torch.device("cpu")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert said() == (
        f"worker 3: the config gives it GPU 1 (device: CUDA), but PyTorch {torch.__version__} of "
        f"{sys.executable} has no CUDA; install a PyTorch with CUDA, or use device: CPU"
    )
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert "but PyTorch sees 1 on this host" in said()
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(_core, "has_gpu_code", True)

    def old_driver(gpu):
        raise _core.JobError(f"CUDA's driver is too old for GPU {gpu}")

    monkeypatch.setattr(_core, "check_gpu", old_driver)
    assert said() == (
        "worker 3: the config gives it GPU 1 (device: CUDA): CUDA's driver is too old for GPU 1"
    )


@without_gpu
def test_the_compiled_part_says_it_too():
    with pytest.raises(_core.JobError, match="no GPU"):
        _core.check_gpu(0)


def test_trained_parameters_elsewhere_are_refused_by_name():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    devices.check_model(net, torch.device("cpu"))
    with pytest.raises(ValueError, match="'0.weight' is on cpu, .* this worker cuda:1 .*net.to\\(job.device\\)"):
        devices.check_model(net, torch.device("cuda", 1))
    for parameter in net[0].parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match="'1.weight' is on cpu"):
        devices.check_model(net, torch.device("cuda", 1))


def test_another_stream_or_gpu_in_the_loop_is_refused(monkeypatch):
    tables = Tables(torch.nn.Linear(2, 2))
    tables.fetch()
    tables.check_unchanged()
    here = {"gpu": 1, "stream": 7}
    monkeypatch.setattr(torch.cuda, "current_device", lambda: here["gpu"])
    monkeypatch.setattr(devices, "stream", lambda device: here["stream"])
    tables.device, tables._stream = torch.device("cuda", 1), 7  # As after the first batch.
    tables.check_unchanged()
    here["stream"] = 8
    with pytest.raises(RuntimeError, match="its stream is another one than at the first batch"):
        tables.check_unchanged()
    here.update(gpu=0, stream=7)
    with pytest.raises(RuntimeError, match="the current GPU is 0, .* on cuda:1"):
        tables.check_unchanged()


@pytest.mark.parametrize("mode", ["bsp", "allreduce"])
@pytest.mark.parametrize(
    "workers, why",
    [
        ('worker { host: "127.0.0.1" count: 2 device: CUDA }', "this build of slackline has no GPU code"),
        (
            'worker { host: "127.0.0.1" device: CUDA }\nworker { host: "127.0.0.1" }',
            "not all workers have device: CUDA",
        ),
    ],
)
def test_parameters_of_a_gpu_may_go_through_the_host(tmp_path, mode, workers, why):
    """The parameters are on the CPU all the same; the config says that they are not."""
    script = NO_GPU_CODE + USUAL
    if "build" not in why:
        script = script.replace("has_gpu_code = False", "has_gpu_code = True")
    config = CONFIG.replace('worker { host: "127.0.0.1" count: 2 }', workers)
    assert config != CONFIG
    run = run_job(tmp_path, script, "--mode", mode, config=config).succeeded()
    assert f"through copies on the host, because {why}" in run.log(0)
    on_cpus = run_job(tmp_path, USUAL, "--mode", mode, name="cpus").succeeded()
    assert run.summary["model_sha256"] == on_cpus.summary["model_sha256"]
