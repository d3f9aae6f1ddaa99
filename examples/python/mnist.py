"""A fully connected net on MNIST.

    python3 mnist.py                                        # alone
    slackline run own_program.textproto --data-dir DATA -- python3 mnist.py
"""

import torch
from data import accuracy, mnist
from torch import nn
from torch.nn import functional as F

import slackline

job = slackline.join()
train_set, test_set = mnist(job.data_dir)
net = job.model(nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
for epoch in job.epochs(5):
    for x, y in job.loader(train_set, batch_size=64):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(lambda net: accuracy(net, test_set))
job.save("mnist.safetensors")
