"""A small residual net with BatchNorm on colour images.

    python3 resnet.py                                       # alone
    slackline run own_program.textproto -- python3 resnet.py
"""

import argparse

import torch
from data import accuracy, shapes
from torch import nn
from torch.nn import functional as F

import slackline


class Block(nn.Module):
    """Two convolutions and a way around them."""

    def __init__(self, channels_in, channels, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.around = nn.Sequential()
        if stride != 1 or channels != channels_in:
            self.around = nn.Sequential(
                nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels)
            )

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.around(x))


class ResNet(nn.Sequential):
    """Three stages; each halves the image and doubles the channels."""

    def __init__(self, channels=8, blocks=1, classes=10):
        stages = [nn.Conv2d(3, channels, 3, 2, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
        for stage in range(3):
            width = channels << stage
            for block in range(blocks):
                first = stage > 0 and block == 0
                stages.append(Block(width // 2 if first else width, width, 2 if first else 1))
        super().__init__(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes))


parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="a few seconds, for tests")
small = parser.parse_args().small

job = slackline.join()
train_set, test_set = shapes(2000 if small else 4000, seed=2), shapes(500 if small else 1000, seed=3)
net = job.model(ResNet())
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4))
for epoch in job.epochs(3 if small else 5):
    for x, y in job.loader(train_set, batch_size=50):
        loss = F.cross_entropy(net(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(lambda net: accuracy(net, test_set))
job.save("resnet.safetensors")
