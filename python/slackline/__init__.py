"""Slackline: train a PyTorch model with parameter servers, or by all-reduce.

    import slackline

    job = slackline.join()
    net = job.model(Net())
    opt = job.optimizer(torch.optim.Adam(net.parameters(), lr=0.001))
    for epoch in job.epochs(5):
        for x, y in job.loader(train_set, batch_size=64):
            loss = F.cross_entropy(net(x), y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            job.log(loss=loss)
        job.evaluate(lambda net: accuracy(net, test_set))
    job.save("model.safetensors")

``python3 train.py`` alone runs in a world of one; ``slackline run
cluster.textproto -- python3 train.py`` starts servers and workers.
"""

try:
    # First: in a build with CUDA both bring libnccl.so.2, and PyTorch may need the newer one.
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "slackline needs PyTorch 1.13 or newer, and comes without it: install the one for your "
        "hardware, for example with `pip install torch`",
        name="torch",
    ) from None
del torch

try:
    from slackline import _core
except ImportError as error:
    if "_core" not in str(error) or "partially initialized" not in str(error):
        raise
    raise ImportError(
        "slackline's compiled module is not beside its files: build the target slackline_python with "
        "this Python's version, or install the wheel"
    ) from None
from slackline._core import JobError, JobSuspended
from slackline._data.loader import Loader
from slackline._tensors.files import load, save
from slackline._job import Job
from slackline._optim.rules import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Lion,
    NAdam,
    RAdam,
    RMSprop,
    Rule,
)
from slackline._optimizer import Optimizer
from slackline._start.join import join
from slackline._start.launch import launch

__version__ = _core.version
__all__ = [
    "Adadelta",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Job",
    "JobError",
    "JobSuspended",
    "Lion",
    "Loader",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rule",
    "SGD",
    "join",
    "launch",
    "load",
    "save",
]

# Pickles and errors say it, while the modules that define them may move.
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
