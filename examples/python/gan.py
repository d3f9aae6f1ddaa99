"""A generative adversarial network that learns to draw points of a circle.

    python3 gan.py                                          # alone
    slackline run own_program.textproto -- python3 gan.py

Each of the two optimizers has its parameters, and each step() is a step of the job: the generator
meets the critic that has just learnt, as in one process.
"""

import argparse
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import slackline


def layers(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, outputs)
    )


def says(critic, points, real):
    """The loss of a critic that should call the points real, or not."""
    judged = critic(points)
    return F.binary_cross_entropy_with_logits(judged, torch.full_like(judged, float(real)))


def evaluate(net):
    """How many points that are drawn are near the circle, and where their middle is."""
    points = net["generator"](torch.randn(500, 4, generator=torch.Generator().manual_seed(9)))
    near = (points.norm(dim=1) - 1).abs() < 0.25
    return {"accuracy": near.float().mean(), "middle": points.mean(0).norm()}


parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="a few seconds, for tests")
arguments = parser.parse_args()

job = slackline.join()
angles = 2 * math.pi * torch.rand(6400, generator=torch.Generator().manual_seed(1))
circle = TensorDataset(torch.stack([angles.cos(), angles.sin()], 1))
net = job.model(nn.ModuleDict({"generator": layers(4, 2), "critic": layers(2, 1)}))
of_critic = job.optimizer(torch.optim.Adam(net["critic"].parameters(), lr=0.002, betas=(0.5, 0.9)))
of_generator = job.optimizer(torch.optim.Adam(net["generator"].parameters(), lr=0.001, betas=(0.5, 0.9)))
for epoch in job.epochs(6 if arguments.small else 20):
    for (real,) in job.loader(circle, batch_size=64):
        drawn = net["generator"](torch.randn(len(real), 4))
        of_critic.zero_grad()
        loss = says(net["critic"], real, True) + says(net["critic"], drawn.detach(), False)
        loss.backward()
        of_critic.step()

        of_generator.zero_grad()
        says(net["critic"], drawn, True).backward()
        of_generator.step()
        job.log(loss=loss)
    job.evaluate(evaluate)
job.save("gan.safetensors")
