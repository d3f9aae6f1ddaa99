"""The net of examples/python/gpu.py with habits that scripts of PyTorch have: habits.py [--compile] [--autocast]
[--accumulate=N]. A step has as many examples with them as without.
"""

import argparse
import pathlib
import sys

import torch
from torch import nn
from torch.nn import functional as F

import slackline

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from data import points  # noqa: E402

parser = argparse.ArgumentParser()
parser.add_argument("--compile", action="store_true")
parser.add_argument("--autocast", action="store_true")
parser.add_argument("--accumulate", type=int, default=1)
args = parser.parse_args()

job = slackline.join()
train_set, test_set = points(8000, seed=2, features=100), points(1000, seed=3, features=100)
net = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
job.model(net.to(job.device))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
forward = torch.compile(net) if args.compile else net
test_inputs, test_labels = (tensor.to(job.device) for tensor in test_set.tensors)


def evaluate(net):
    scores = net(test_inputs)
    right = (scores.argmax(1) == test_labels).float().mean()
    return {"loss": F.cross_entropy(scores, test_labels), "accuracy": right}


for epoch in job.epochs(2):
    loader = job.loader(train_set, batch_size=64 // args.accumulate, accumulate=args.accumulate)
    for i, (x, y) in enumerate(loader):
        with torch.autocast(job.device.type, dtype=torch.bfloat16, enabled=args.autocast):
            scores = forward(x.to(job.device))
            loss = F.cross_entropy(scores, y.to(job.device)) / args.accumulate
        assert scores.dtype == (torch.bfloat16 if args.autocast else torch.float32)
        loss.backward()
        if (i + 1) % args.accumulate == 0:
            opt.step()
            opt.zero_grad()
            job.log(loss=loss * args.accumulate)
    job.evaluate(evaluate)
job.save("habits.safetensors")
