"""A transformer that predicts the next character of a text.

    python3 transformer.py [TEXT]                           # alone; without a file: Python's own modules
    slackline run own_program.textproto -- python3 transformer.py [TEXT]
"""

import argparse

import torch
from data import characters
from torch import nn
from torch.nn import functional as F

import slackline


class Transformer(nn.Module):
    """Two layers; each character sees itself and those before it."""

    def __init__(self, vocabulary, length, width=64, layers=2):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers)
        self.norm = nn.LayerNorm(width)
        self.output = nn.Linear(width, vocabulary)
        self.register_buffer("mask", torch.triu(torch.full((length, length), float("-inf")), diagonal=1))

    def forward(self, x):
        return self.output(self.norm(self.layers(self.embedding(x) + self.position, self.mask)))


def loss_of(net, pieces):
    return F.cross_entropy(net(pieces[:, :-1]).transpose(1, 2), pieces[:, 1:])


def evaluate(net):
    pieces = test_set.tensors[0]
    right = net(pieces[:, :-1]).argmax(2) == pieces[:, 1:]
    return {"loss": loss_of(net, pieces), "accuracy": right.float().mean()}


parser = argparse.ArgumentParser()
parser.add_argument("text", nargs="?", help="a file; default: modules of Python")
parser.add_argument("--small", action="store_true", help="a few seconds, for tests")
arguments = parser.parse_args()

job = slackline.join()
length = 32 if arguments.small else 64
train_set, test_set, vocabulary = characters(arguments.text, length)
net = job.model(Transformer(vocabulary, length))
# Norms, biases and positions have no weight decay.
decayed = [p for name, p in net.named_parameters() if p.dim() > 1 and name != "position"]
others = [p for name, p in net.named_parameters() if p.dim() == 1 or name == "position"]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
opt = job.optimizer(torch.optim.AdamW(groups, lr=0.003))
warm_up = torch.optim.lr_scheduler.LambdaLR(opt, lambda step: min(1, (step + 1) / 50))
loader = job.loader(train_set, batch_size=32, steps=40 // job.world_size if arguments.small else None)
for epoch in job.epochs(2 if arguments.small else 4):
    for (pieces,) in loader:
        loss = loss_of(net, pieces)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        warm_up.step()
        job.log(loss=loss)
    job.evaluate(evaluate)
job.save("transformer.safetensors")
