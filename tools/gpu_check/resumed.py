"""A script whose model depends on the whole state of the job: parameters, momentum, masks of dropout, running
means and a scheduler. It is slow enough to be stopped in its midst.
"""

import os
import pathlib
import sys
import time

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # Products have the same bits in each run.

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import slackline  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "python"))
from data import points  # noqa: E402

torch.use_deterministic_algorithms(True)
job = slackline.join()
train_set, test_set = points(8000, seed=2, features=100), points(1000, seed=3, features=100)
net = nn.Sequential(nn.Linear(100, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.3), nn.Linear(256, 10))
job.model(net.to(job.device))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
scheduler = torch.optim.lr_scheduler.StepLR(opt, 50, 0.7)
job.keep(scheduler=scheduler)
test_inputs, test_labels = (tensor.to(job.device) for tensor in test_set.tensors)

for epoch in job.epochs(4):
    for x, y in job.loader(train_set, batch_size=64):
        loss = F.cross_entropy(net(x.to(job.device)), y.to(job.device))
        opt.zero_grad()
        loss.backward()
        opt.step()
        scheduler.step()
        job.log(loss=loss)
        time.sleep(0.01)
    job.evaluate(lambda net: (net(test_inputs).argmax(1) == test_labels).float().mean())
job.save("resumed.safetensors")
