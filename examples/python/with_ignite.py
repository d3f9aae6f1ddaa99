"""The loop of PyTorch-Ignite instead of one's own.

    python3 with_ignite.py                                  # alone
    slackline run own_program.textproto -- python3 with_ignite.py
"""

import argparse
import sys

import torch
from data import accuracy, points
from torch import nn

import slackline

try:
    from ignite.engine import Events, create_supervised_trainer
    from ignite.handlers import TerminateOnNan
    from ignite.metrics import RunningAverage
except ImportError as error:
    print(f"with_ignite.py: {error}; install it with: pip install pytorch-ignite", file=sys.stderr)
    sys.exit(2)

parser = argparse.ArgumentParser()
parser.add_argument("--small", action="store_true", help="a few seconds, for tests")
small = parser.parse_args().small

job = slackline.join()
train_set, test_set = points(2000 if small else 8000, seed=2), points(1000, seed=3)
net = job.model(nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
loader = job.loader(train_set, batch_size=50)

trainer = create_supervised_trainer(net, opt, nn.CrossEntropyLoss())
RunningAverage(output_transform=lambda loss: loss).attach(trainer, "loss")
trainer.add_event_handler(Events.ITERATION_COMPLETED, TerminateOnNan())


@trainer.on(Events.ITERATION_COMPLETED)
def log(engine):
    job.log(loss=engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    print(f"epoch {engine.state.epoch}: running loss {engine.state.metrics['loss']:.4f}")
    job.evaluate(lambda net: accuracy(net, test_set))


for epoch in job.epochs(2 if small else 3):
    trainer.run(loader, max_epochs=epoch + 1)
job.save("with_ignite.safetensors")
