"""What does a step over servers cost beside a plain loop of PyTorch, on the device of this worker?

cost.py HIDDEN STEPS, as the only worker of a job: the MLP 784-HIDDEN-HIDDEN-10, 64 examples in a step. The plain loop
runs before the job and after it. Each time is the median of blocks of ten steps, with a wait for the device at
their ends. Expected: in a step over servers all gradients go to the host, to the server and into an update
there, and all parameters come back, 8 bytes for each parameter; nothing of that overlaps with the plain loop's time.
Writes cost.json into the folder of the run.
"""

import json
import pathlib
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import slackline

BATCH, BLOCK, WARM_UP = 64, 10, 2  # The last one in blocks.
hidden, steps = int(sys.argv[1]), int(sys.argv[2])
job = slackline.join()
examples = BATCH * (steps + WARM_UP * BLOCK)
data = TensorDataset(torch.randn(examples, 784), torch.randint(10, (examples,)))


def make():
    layers = nn.Linear(784, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10)
    net = nn.Sequential(*layers).to(job.device)
    return net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)


def milliseconds(net, opt, batches):
    """Of a step."""
    ends = []
    for i, (x, y) in enumerate(batches):
        if i % BLOCK == 0:
            if job.device.type == "cuda":
                torch.cuda.synchronize()
            ends.append(time.perf_counter())
        loss = F.cross_entropy(net(x.to(job.device)), y.to(job.device))
        opt.zero_grad()
        loss.backward()
        opt.step()
    times = [after - before for before, after in zip(ends[WARM_UP:], ends[WARM_UP + 1 :])]
    return 1000 * statistics.median(times) / BLOCK


def plain():
    net, opt = make()
    return milliseconds(net, opt, zip(*(tensor.split(BATCH) for tensor in data.tensors)))


before = plain()
net, opt = make()
job.model(net)
opt = job.optimizer(opt)
for epoch in job.epochs(1):
    over_servers = milliseconds(net, opt, job.loader(data, batch_size=BATCH))
found = {
    "device": str(job.device),
    "parameters": sum(parameter.numel() for parameter in net.parameters()),
    "plain_ms": [before, plain()],
    "servers_ms": over_servers,
}
pathlib.Path(job.out, "cost.json").write_text(json.dumps(found))
print(found)
