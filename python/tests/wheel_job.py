"""A small job: which of ten centers is a point near? Usage: wheel_job.py MODEL_FILE

For test_wheel.py and tools/try_wheel.sh. Prints which files it, slackline and its
other processes use.
"""

import os
import pathlib
import sys

import slackline
import torch
import torch.nn.functional as F
from torch.utils.data import TensorDataset

print("torch", torch.__version__)
launcher = os.getppid()
processes = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
for process in [str(launcher), *processes]:
    mapped = pathlib.Path(f"/proc/{process}/maps").read_text().splitlines()
    for file in sorted({line.split(None, 5)[5] for line in mapped if "/" in line}):
        print("uses", file)
sys.stdout.flush()

job = slackline.join()
generator = torch.Generator().manual_seed(3)
centers = torch.randn(10, 32, generator=generator)
labels = torch.arange(4400) % 10
points = centers[labels] + torch.randn(4400, 32, generator=generator)
test_points, test_labels = points[4000:], labels[4000:]

net = job.model(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
for epoch in job.epochs(2):
    for x, y in job.loader(TensorDataset(points[:4000], labels[:4000]), batch_size=50):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(lambda net: (net(test_points).argmax(1) == test_labels).float().mean())
job.save(sys.argv[1])
