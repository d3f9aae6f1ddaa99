"""Goal: what a wheel brings is a complete installation.

Method: makes a wheel with the real pyproject.toml of what this build has built,
installs it into a new environment outside the checkout, without a network, and
runs a job there. Behind pyproject.toml stands a project that has nothing to
compile; that the real one builds is left to tools/build_wheel.sh.
"""

import json
import os
import pathlib
import subprocess
import sys
from typing import Dict, List

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
BUILD = pathlib.Path(os.environ["SLACKLINE_BIN_DIR"]).parent


def run(command: List[str], folder: pathlib.Path, expect: int = 0) -> str:
    """What the command prints, without anything of this test's surroundings."""
    environment: Dict[str, str] = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "LANG": "C.UTF-8"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == expect, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    folder = tmp_path_factory.mktemp("wheel")
    for component in ("python", "wheel"):
        run(["cmake", "--install", BUILD, "--component", component, "--prefix", folder / "stage"], folder)
    (packages,) = (folder / "stage").glob("lib/python*/site-packages")
    run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, HERE.parent]
        + [f"--config-setting=build-dir={folder}/build"]
        + [f"--config-setting=cmake.source-dir={HERE}/built_wheel"]
        + [f"--config-setting=cmake.define.STAGE={packages}"],
        folder,
    )
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bin_dir(wheel: pathlib.Path, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Of an environment with the wheel, and with the system's PyTorch."""
    venv = tmp_path_factory.mktemp("installed") / "venv"
    base = getattr(sys, "_base_executable")
    run([base, "-m", "venv", "--system-site-packages", "--without-pip", venv], venv.parent)
    run(
        [sys.executable, "-m", "pip", "--python", venv / "bin" / "python"]
        + ["install", "--quiet", "--no-index", "--no-deps", wheel],
        venv.parent,
    )
    return venv / "bin"


def test_commands_say_their_version(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for program in ("slackline", "slackline_server"):
        version = wheel_version(bin_dir, tmp_path)
        assert run([bin_dir / program, "--version"], tmp_path).startswith(f"{program} {version} (")


def wheel_version(bin_dir: pathlib.Path, folder: pathlib.Path) -> str:
    ask = "import importlib.metadata as m; print(m.version('slackline-ps'))"
    return run([bin_dir / "python", "-c", ask], folder).strip()


def test_job_uses_the_installation_alone(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    job = tmp_path / "job.py"
    job.write_text((HERE / "wheel_job.py").read_text())
    config = tmp_path / "job.textproto"
    config.write_text((HERE / "wheel_job.textproto").read_text())
    run(
        [bin_dir / "slackline", "run", config, "--mode", "bsp", "--out", "run"]
        + ["--", bin_dir / "python", job, "model.safetensors"],
        tmp_path,
    )
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["state"] == "FINISHED"
    assert (tmp_path / "model.safetensors").stat().st_size > 0

    log = (tmp_path / "run" / "logs" / "worker-0.log").read_text()
    used = {line.split(" ", 1)[1] for line in log.splitlines() if line.startswith("uses ")}
    installed = {pathlib.Path(path).name for path in used if path.startswith(str(bin_dir.parent))}
    # The programs, and the module with its suffix.
    assert {"slackline", "slackline_server"} < {name.split(".")[0] for name in installed}
    assert any(name.startswith("_core.") for name in installed)
    assert not [path for path in used if path.startswith((str(SOURCE), str(BUILD)))]


def test_report_is_there(bin_dir: pathlib.Path, tmp_path: pathlib.Path) -> None:
    said = run([bin_dir / "slackline", "report", tmp_path], tmp_path, expect=1)
    assert "slackline_report.py is not there" not in said


def test_a_model_of_the_config_needs_another_installation(
    bin_dir: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    config = SOURCE / "examples" / "mnist_mlp.textproto"
    said = run([bin_dir / "slackline", "run", config], tmp_path, expect=1)
    assert "slackline_worker is not there" in said
    assert "--bin-dir" in said and "python3 train.py" in said
