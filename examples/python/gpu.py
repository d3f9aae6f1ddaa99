"""A fully connected net on the device that the config gives: a GPU with device: CUDA, else the CPU.

    python3 gpu.py                                          # alone, on the CPU
    slackline run gpu.textproto -- python3 gpu.py           # 2 workers, each on a GPU of its own
    slackline run own_program.textproto -- python3 gpu.py   # the same on the CPU
"""

import torch
from data import points
from torch import nn
from torch.nn import functional as F

import slackline

job = slackline.join()
train_set, test_set = points(8000, seed=2, features=100), points(1000, seed=3, features=100)
net = nn.Sequential(nn.Linear(100, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
net = job.model(net.to(job.device))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
test_inputs, test_labels = (tensor.to(job.device) for tensor in test_set.tensors)


def evaluate(net):
    scores = net(test_inputs)
    right = (scores.argmax(1) == test_labels).float().mean()
    return {"loss": F.cross_entropy(scores, test_labels), "accuracy": right}


for epoch in job.epochs(2):
    for x, y in job.loader(train_set, batch_size=64):
        loss = F.cross_entropy(net(x.to(job.device)), y.to(job.device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(evaluate)
job.save("gpu.safetensors")
