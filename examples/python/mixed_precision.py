"""A net in 16 bits: parameters and what is sent are float32.

    python3 mixed_precision.py                              # alone
    slackline run own_program.textproto -- python3 mixed_precision.py
    slackline run gpu.textproto -- python3 mixed_precision.py

On a CPU it computes in bfloat16. On a GPU in float16, whose gradients may overflow: then a GradScaler
leaves the step out, in BSP and by all-reduce on all workers, else on the one whose gradients they are.
"""

import torch
from data import accuracy, mnist
from torch import nn
from torch.nn import functional as F

import slackline

job = slackline.join()
kind = job.device.type
train_set, test_set = mnist(job.data_dir)
net = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
net = job.model(net.to(job.device))
opt = job.optimizer(torch.optim.AdamW(net.parameters(), lr=0.002))
scaler = torch.cuda.amp.GradScaler(enabled=kind == "cuda")
for epoch in job.epochs(2):
    for x, y in job.loader(train_set, batch_size=64):
        opt.zero_grad()
        with torch.autocast(kind, dtype=torch.float16 if kind == "cuda" else torch.bfloat16):
            loss = F.cross_entropy(net(x.to(job.device)), y.to(job.device))
        scaler.scale(loss).backward()
        scaler.unscale_(opt)
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(opt)
        scaler.update()
        job.log(loss=loss)
    job.evaluate(lambda net: accuracy(net, test_set))
job.save("mixed_precision.safetensors")
