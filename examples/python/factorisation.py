"""Ratings as products of what is learned about users and items.

    python3 factorisation.py                                # alone
    slackline run own_program.textproto -- python3 factorisation.py
"""

import argparse

import torch
from data import ratings
from torch import nn
from torch.nn import functional as F

import slackline


class Factorisation(nn.Module):
    """One vector and one number for each user and each item."""

    def __init__(self, users, items, factors=8):
        super().__init__()
        self.user, self.item = nn.Embedding(users, factors), nn.Embedding(items, factors)
        self.user_bias, self.item_bias = nn.Embedding(users, 1), nn.Embedding(items, 1)
        for table in self.children():
            nn.init.normal_(table.weight, std=0.3)

    def forward(self, user, item):
        product = (self.user(user) * self.item(item)).sum(1)
        return product + self.user_bias(user)[:, 0] + self.item_bias(item)[:, 0]


def evaluate(net):
    user, item, rating = test_set.tensors
    return {"loss": F.mse_loss(net(user, item), rating)}


parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="a few seconds, for tests")
small = parser.parse_args().small

job = slackline.join()
train_set, test_set = ratings(20000 if small else 40000, seed=2), ratings(2000, seed=3)
net = job.model(Factorisation(users=300, items=200))
opt = job.optimizer(torch.optim.Adam(net.parameters(), lr=0.01))
for epoch in job.epochs(3 if small else 5):
    for user, item, rating in job.loader(train_set, batch_size=100):
        loss = F.mse_loss(net(user, item), rating)
        opt.zero_grad()
        loss.backward()
        opt.step()
        job.log(loss=loss)
    job.evaluate(evaluate)
job.save("factorisation.safetensors")
