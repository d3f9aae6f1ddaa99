"""A job on numbers made up here, for tests in Python: y = 2 a - 3 b + 0.5."""

import pathlib
import random
import subprocess

CONFIG = """
job: "small"
server { host: "127.0.0.1" count: 2 threads: 1 }
worker { host: "127.0.0.1" count: 2 conditions { step_ms: %(step_ms)d } }
model { linear {} }
data { csv { train: "train.csv" test: "test.csv" label: "y" } batch_size: 10 normalisation { per_feature {} } }
optimizer { sgd { learning_rate: %(rate)g } }
train { epochs: %(epochs)d seed: 1 }
%(more)s
"""


def write(
    folder: pathlib.Path, more: str = "", epochs: int = 2, step_ms: int = 1, rate: float = 0.2
) -> pathlib.Path:
    """The data, 40 steps an epoch, and the config, whose path is returned."""
    numbers = random.Random(1)
    for name, count in (("train", 800), ("test", 100)):
        rows = [(numbers.random(), 100 * numbers.random()) for _ in range(count)]
        lines = [f"{a},{b},{2 * a - 3 * b + 0.5}" for a, b in rows]
        (folder / f"{name}.csv").write_text("\n".join(["a,b,y", *lines, ""]), encoding="utf-8")
    config = folder / "job.textproto"
    text = CONFIG % {"step_ms": step_ms, "rate": rate, "epochs": epochs, "more": more}
    config.write_text(text, encoding="utf-8")
    return config


def command(programs: pathlib.Path, config: pathlib.Path, out: pathlib.Path, *flags: str) -> list[str]:
    slackline = str(programs / "slackline")
    return [
        slackline,
        "run",
        str(config),
        f"--data-dir={config.parent}",
        f"--out={out}",
        "--no-progress",
        *flags,
    ]


def done(command: list[str], code: int = 0) -> str:
    """What the command said; it has ended with this code."""
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, check=False
    )
    assert ended.returncode == code, ended.stdout
    return ended.stdout
