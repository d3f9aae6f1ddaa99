"""A net of mnist.py that learns another task: its first layer stays, and training goes on where it was.

    python3 mnist.py && python3 fine_tune.py --from mnist.safetensors   # alone
    slackline run own_program.textproto -- python3 fine_tune.py --from mnist.safetensors

At the end of each epoch worker 0 writes fine_tune.pt. A run that finds one goes on from there, alone
or in a job, in any mode. Without --from the layers begin as they come.
"""

import argparse
import os

import torch
from data import accuracy, points
from torch import nn
from torch.nn import functional as F

import slackline

STATE = "fine_tune.pt"
parser = argparse.ArgumentParser()
parser.add_argument("--from", dest="start", help="a file of mnist.py")
parser.add_argument("--small", action="store_true", help="a few seconds, for tests")
arguments = parser.parse_args()

job = slackline.join()
# Other points than mnist.py has without a data set, in two classes.
train_set, test_set = (points(count, seed, classes=2) for count, seed in ((8000, 4), (1000, 5)))
net = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))
if arguments.start:
    net.load_state_dict(slackline.load(arguments.start))
net[4] = nn.Linear(512, 2)
net[0].requires_grad_(False)  # Before job.model(): it is no table, and nothing of it is sent.
saved = torch.load(STATE) if os.path.exists(STATE) else None
if saved is not None:
    net.load_state_dict(saved["net"])
job.model(net)
groups = [{"params": net[2].parameters(), "lr": 0.001}, {"params": net[4].parameters()}]
opt = job.optimizer(torch.optim.SGD(groups, lr=0.01, momentum=0.9))
scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.9)
done = 0
if saved is not None:
    opt.load_state_dict(saved["opt"])
    scheduler.load_state_dict(saved["scheduler"])
    done = saved["epochs"]
    print(f"goes on after epoch {done}")
for epoch in job.epochs(1 if arguments.small else 3):
    for x, y in job.loader(train_set, batch_size=64):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    scheduler.step()
    job.evaluate(lambda net: accuracy(net, test_set))
    if job.rank == 0:
        state = {"net": net.state_dict(), "opt": opt.state_dict(), "scheduler": scheduler.state_dict()}
        torch.save({**state, "epochs": done + epoch + 1}, STATE)
job.save("fine_tune.safetensors")
