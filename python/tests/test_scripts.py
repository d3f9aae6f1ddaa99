"""What scripts do: each row alone and in jobs of two workers, beside plain PyTorch.

A row either ends with the model of plain PyTorch, or is refused by name. docs/manual/python.md has
the same table for readers. A row is a script of the form below with some of its parts changed;
a new one needs nothing else.

Both workers have the same examples, so each worker's gradient is that of the batch of plain
PyTorch, which has the examples of both. In SSP and ASP runs differ: there the distance to
plain PyTorch has to be small beside the way that training has gone.
"""

import dataclasses
import re
import textwrap
from typing import Dict, List, Tuple

import forked
import pytest
import torch

HEAD = '''
import itertools, os, random, sys, threading, warnings
warnings.simplefilter("ignore")
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset
torch.set_num_threads(1)

class Plain:
    """The same script without slackline: one process with the batches of all workers."""
    rank, mode = 0, "plain"
    def __init__(self, workers):
        self.workers = workers
        torch.manual_seed(1)
    def model(self, net, **_): self.net = net; return net
    def optimizer(self, opt, **_): return opt
    def epochs(self, n): return range(n)
    def loader(self, data, batch_size, shuffle=False, steps=None, accumulate=1, sampler=None, drop_last=True):
        made = torch.utils.data.DataLoader(data, batch_size * self.workers, sampler=sampler, drop_last=True)
        return made if steps is None else list(itertools.islice(made, steps))
    def log(self, **_): pass
    def evaluate(self, f):
        self.net.eval(); f(self.net); self.net.train()
    def all_gather(self, x): return [x]
    def save(self, path): torch.save(self.net.state_dict(), path)

def join():
    if "PLAIN" in os.environ:
        return Plain(int(os.environ["PLAIN"]))
    import slackline
    if "JOB_CONFIG" not in os.environ:
        return slackline.join()
    return slackline.join(
        os.environ["JOB_CONFIG"], int(os.environ["JOB_INDEX"]), mode=os.environ["JOB_MODE"], out=".")

job = join()
generator = torch.Generator().manual_seed(3)
x = torch.randn(32, 8, generator=generator)
x, y = (v.reshape(8, 1, 4, *v.shape[1:]).repeat_interleave(2, 1).reshape(64, *v.shape[1:])
        for v in (x, x[:, :3].argmax(1)))
ds = TensorDataset(x, y)
def make():
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
def accuracy(net):
    return float((net(ds.tensors[0]).argmax(1) == ds.tensors[1]).float().mean())
'''

FORM = '''
{build}
net = make()
torch.save({{name: value for name, value in net.state_dict().items()}}, f"begin-{{job.rank}}.pt")
{before}
net = job.model(net)
{before_optimizer}
opt = job.optimizer({optimizer})
{setup}
for epoch in {epochs}:
    {epoch_begin}
    for i, (x, y) in enumerate({loader}):
        {begin}
        {step}
        {after}
    {epoch_end}
{end}
job.save("end.pt" if job.mode == "plain" else "end.safetensors")
'''
DEFAULTS = dict(
    build="",
    before="",
    before_optimizer="",
    optimizer="torch.optim.SGD(net.parameters(), lr=0.1)",
    setup="",
    epochs="job.epochs(3)",
    epoch_begin="",
    loader="job.loader(ds, batch_size=4, shuffle=False)",
    begin="",
    step="{zero}\nloss = {loss}\n{backward}\n{between}\nopt.step()",
    zero="opt.zero_grad()",
    loss="F.cross_entropy(net(x), y)",
    backward="loss.backward()",
    between="",
    after="",
    epoch_end="",
    end="",
)
MODES = ("alone", "bsp", "ssp:1", "asp", "allreduce")
SERVERS = ("bsp", "ssp:1", "asp")
JOBS = (*SERVERS, "allreduce")


@dataclasses.dataclass
class Row:
    name: str
    parts: Dict[str, str]
    refused: Dict[str, str]  # By mode: what is said. Other modes agree.
    said: Dict[str, str]  # By mode: what is said besides; the row agrees.
    apart: Dict[str, str]  # By mode: why the model is not that of plain PyTorch; it trains.
    check: str  # Of the model that was trained, as `state`; in each mode that is not refused.
    modes: Tuple[str, ...]

    def script(self) -> str:
        parts = {**DEFAULTS, **self.parts}
        text = HEAD + FORM
        for _ in range(2):  # Parts may have parts.
            for name, part in parts.items():
                place = "{" + name + "}"
                lines = []
                for line in text.split("\n"):
                    if place in line and line.strip() == place:
                        lines.append(textwrap.indent(textwrap.dedent(part).strip("\n") or "pass", line[: line.index(place)]))
                    else:
                        lines.append(line.replace(place, part))
                text = "\n".join(lines)
        return text.replace("{{", "{").replace("}}", "}")


def _by_mode(given) -> Dict[str, str]:
    return {} if given is None else {mode: given for mode in MODES} if isinstance(given, str) else {
        mode: text for modes, text in given.items() for mode in ([modes] if isinstance(modes, str) else modes)
    }


def row(name, refused=None, said=None, apart=None, check="", modes=MODES, **parts) -> Row:
    assert parts.keys() <= DEFAULTS.keys(), parts
    return Row(name, parts, _by_mode(refused), _by_mode(said), _by_mode(apart), check, modes)


# Of what is the same in all modes, such as loading.
ONE_JOB = ("alone", "bsp")


CHANGED = "was changed by the script after the job had begun"
PARAMETERS = "for p in net.parameters(): "
GRADIENT_LATE = r"the gradient of '\d\.\w+' was changed after backward, by \w+\(\), when it was on its way"
# A GAN whose noise is of its examples, so that all batches are alike in all runs.
GAN = """
def make():
    torch.manual_seed(5)
    return nn.ModuleDict({
        'g': nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)),
        'd': nn.Sequential(nn.Linear(8, 16), nn.LeakyReLU(0.2), nn.Linear(16, 1)),
    })
def is_real(p): return F.binary_cross_entropy_with_logits(p, torch.ones_like(p))
def is_fake(p): return F.binary_cross_entropy_with_logits(p, torch.zeros_like(p))
"""
OF_D = """of_d.zero_grad()
fake = net['g'](x.flip(1)[:, :4])
is_real(net['d'](x)).backward(); is_fake(net['d'](fake.detach())).backward()
of_d.step()"""
OF_G = "of_g.zero_grad(); is_real(net['d'](fake)).backward(); of_g.step()"
# What a GradScaler does on a GPU, with the protocol of torch.amp's: that of PyTorch 1.13 has
# nothing for a CPU. The real one of a newer PyTorch does the same here.
SCALER = """
class Scaler:
    def __init__(self):
        self.factor, self._per_optimizer_states = 1024.0, {}
    def scale(self, loss): return loss * self.factor
    def check(self, opt, divide):
        grads = [p.grad for group in opt.param_groups for p in group["params"]]
        found = torch.tensor(float(not all(torch.isfinite(g).all() for g in grads)))
        for g in grads: g.mul_(1 / self.factor if divide else 1.0)
        self._per_optimizer_states[id(opt)] = {"found_inf_per_device": {"cpu": found}, "unscaled": divide}
    def unscale_(self, opt): self.check(opt, True)
    def step(self, opt):
        ours = getattr(opt, "_step_supports_amp_scaling", False)
        if id(opt) not in self._per_optimizer_states: self.check(opt, not ours)
        state = self._per_optimizer_states[id(opt)]
        found = state["found_inf_per_device"]["cpu"]
        if ours:
            opt.grad_scale = None if state["unscaled"] else torch.tensor(self.factor)
            opt.found_inf = found + 0
            opt.step()
            del opt.grad_scale, opt.found_inf
        elif not found: opt.step()
    def update(self):
        for state in self._per_optimizer_states.values():
            if state["found_inf_per_device"]["cpu"]: self.factor /= 2
        self._per_optimizer_states = {}
"""
ROWS: List[Row] = [
    row("plain loop"),
    # ---- Gradients between backward and step() ------------------------------
    row("gradients clamped by .data", between=PARAMETERS + "p.grad.data.clamp_(-0.01, 0.01)"),
    row("gradients scaled by .data", between=PARAMETERS + "p.grad.data.mul_(0.5)"),
    row("gradients scaled in a detached view", between=PARAMETERS + "p.grad.detach().view(-1)[:].mul_(0.5)"),
    row("gradients replaced", between=PARAMETERS + "p.grad = p.grad * 0.5"),
    row("gradients replaced by .data", between=PARAMETERS + "p.grad.data = p.grad.data * 0.5"),
    row("gradients changed by NumPy", between=PARAMETERS + "g = p.grad.numpy(); g *= 0.5"),
    row("gradients scaled by foreach", between="torch._foreach_mul_([p.grad for p in net.parameters()], 0.5)"),
    row("clip_grad_value_", between="nn.utils.clip_grad_value_(net.parameters(), 0.01)"),
    row("clip_grad_norm_", between="nn.utils.clip_grad_norm_(net.parameters(), 0.05)"),
    row(
        "a clamp that changes something in late steps only",
        between=PARAMETERS + "p.grad.data.clamp_(-1, 1) if epoch == 0 else p.grad.data.clamp_(-0.01, 0.01)",
    ),
    row(
        "gradients changed from the second epoch on",
        between="if epoch: [p.grad.data.mul_(0.5) for p in net.parameters()]",
        refused={JOBS: GRADIENT_LATE + ".*overlap=False"},
    ),
    row(
        "gradients read in each step",
        setup="norms, first = [], []",
        between="norms.append(float(sum(p.grad.norm() ** 2 for p in net.parameters()) ** 0.5))\n"
        "first.append(net[0].weight.grad.detach().cpu().numpy().mean())",
        end="assert len(norms) == len(first) and all(n > 0 for n in norms)",
    ),
    row(
        "a hook that takes the gradient away, as of an optimizer that steps in backward",
        build="nodes = []  # A hook lives as long as they do.",
        before="""w = net[0].weight
if hasattr(w, "register_post_accumulate_grad_hook"):
    w.register_post_accumulate_grad_hook(lambda w: setattr(w, "grad", None))
else:
    nodes.append(w.expand_as(w).grad_fn.next_functions[0][0])
    nodes[0].register_hook(lambda *_: setattr(w, "grad", None))""",
    ),
    row("tensor hooks that clamp", setup=PARAMETERS + "p.register_hook(lambda g: g.clamp(-0.01, 0.01))"),
    row("two backward calls in a step", backward="(loss / 4).backward(retain_graph=True); (loss * 0.75).backward()"),
    row(
        "gradient penalty",
        backward="g = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)\n"
        "(loss + 0.1 * sum(v.square().sum() for v in g)).backward()",
    ),
    row("create_graph", backward="loss.backward(create_graph=True)", zero="net.zero_grad(set_to_none=True)"),
    row("zeros in zero_grad", zero="opt.zero_grad(set_to_none=False)"),
    row("zero_grad after step", zero="", after="opt.zero_grad()"),
    row(
        "a closure",
        step="def closure():\n    opt.zero_grad(); l = F.cross_entropy(net(x), y); l.backward(); return l\nopt.step(closure)",
    ),
    # ---- Values of parameters ------------------------------------------------
    row(
        "weights clamped by .data",
        after=PARAMETERS + "p.data.clamp_(-0.05, 0.05)",
        refused={SERVERS: "parameter '0.weight' " + CHANGED + ".*--mode allreduce"},
        check="max(v.abs().max() for v in state.values()) <= 0.05001",
    ),
    row(
        "weights clamped before forward",
        begin=PARAMETERS + "p.data.clamp_(-0.05, 0.05)",
        refused={SERVERS: CHANGED},
    ),
    row(
        "weights clamped under no_grad",
        after="with torch.no_grad(): [p.clamp_(-0.05, 0.05) for p in net.parameters()]",
        refused={SERVERS: CHANGED},
    ),
    row(
        "a pruning mask",
        setup="mask = (torch.arange(128).reshape(16, 8) % 3 > 0).float()",
        after="net[0].weight.data *= mask",
        refused={SERVERS: "parameter '0.weight' " + CHANGED},
        check="(state['0.weight'].reshape(-1)[::3] == 0).all()",
    ),
    row(
        "max-norm assigned to .data",
        after="net[0].weight.data = torch.renorm(net[0].weight.data, 2, 0, 0.3)",
        refused={SERVERS: CHANGED},
        check="state['0.weight'].norm(dim=1).max() < 0.3001",
    ),
    row(
        "weights clamped once an epoch",
        epoch_end=PARAMETERS + "p.data.clamp_(-0.05, 0.05)",
        refused={SERVERS: CHANGED},
    ),
    row(
        "weights of float64 clamped",
        build="plain_make = make\nmake = lambda: plain_make().double()",
        loss="F.cross_entropy(net(x.double()), y)",
        after=PARAMETERS + "p.data.clamp_(-0.05, 0.05)",
        refused={SERVERS: CHANGED},
        check="max(v.abs().max() for v in state.values()) <= 0.05001",
    ),
    row(
        "weights changed on one worker only",
        after="if job.rank == 0 and epoch == 1: net[0].weight.data.mul_(0.5)",
        refused={
            SERVERS: CHANGED,
            "allreduce": r"parameter '0.weight' is not the same on workers 0 and 1",
        },
    ),
    row(
        "load_state_dict in the loop",
        epoch_end="if epoch == 0: net.load_state_dict(make().state_dict())",
        refused={SERVERS: CHANGED},
    ),
    row("a parameter replaced", epoch_end="if epoch == 0: net[0].weight = nn.Parameter(net[0].weight * 1)",
        refused={MODES: "parameter '0.weight' (was not there at job.model|is not in the model any more)"}),
    # ---- Memory in common, freezing ------------------------------------------
    row(
        "tying by .data",
        build="def make():\n    torch.manual_seed(5)\n    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))",
        before="net[2].weight.data = net[0].weight.data",
        refused="parameters '0.weight' and '2.weight' lie in the same memory.*2.weight = 0.weight without .data",
    ),
    row(
        "tying by the parameter",
        build="def make():\n    torch.manual_seed(5)\n    net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))\n"
        "    net[2].weight = net[0].weight\n    return net",
    ),
    row(
        "parameters in parts of one memory",
        before="flat = torch.cat([p.detach().reshape(-1) for p in net.parameters()])\nat = 0\n"
        "for p in net.parameters():\n    p.data = flat[at:at + p.numel()].view_as(p); at += p.numel()",
    ),
    row(
        "parameters whose memory overlaps",
        before="flat = torch.randn(200)\nnet[0].weight.data = flat[:128].view(16, 8)\nnet[0].bias.data = flat[127:143]",
        refused="parameters '0.weight' and '0.bias' lie in the same memory.*data.clone",
    ),
    row(
        "unfreezing under way",
        before="net[0].requires_grad_(False)",
        epoch_begin="if epoch == 1: net[0].requires_grad_(True)",
        refused="parameter '0.weight' requires a gradient now, and was frozen at job.model",
    ),
    row(
        "a frozen layer",
        before="net[0].requires_grad_(False)",
    ),
    row("freezing under way", epoch_begin="if epoch == 1: net[0].requires_grad_(False)"),
    row(
        "freezing under way with momentum",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)",
        zero="opt.zero_grad(set_to_none=True)",
        epoch_begin="if epoch == 1: net[0].requires_grad_(False)",
        apart={("ssp:1", "asp"): "momentum makes more of gradients that come one by one"},
    ),
    row(
        "a group whose rate is 0 at first",
        optimizer="torch.optim.Adam([{'params': net[0].parameters()}, {'params': net[2].parameters()}], lr=0.01)",
        epoch_begin="opt.param_groups[0]['lr'] = 0.01 if epoch else 0.0",
    ),
    row(
        "a parameter that is never used",
        build="class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.used = nn.Linear(8, 3)\n"
        "        self.spare = nn.Linear(2, 2)\n    def forward(self, x):\n        return self.used(x)\nmake = Net",
        optimizer="torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)",
        said={JOBS: "no gradient of 'spare.weight', 'spare.bias'. It counts as zeros"},
        apart={JOBS: "weight decay acts on it"},
    ),
    # ---- What is not trained ---------------------------------------------------
    row(
        "a model that only worker 0 loads",
        build="def make():\n    torch.manual_seed(5 + job.rank)\n"
        "    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16, momentum=0.0), nn.Tanh(), nn.Linear(16, 3))\n"
        "    net[0].requires_grad_(False)\n    net[1].running_mean += job.rank\n    return net",
        begin="if epoch == i == 0:\n    sums = job.all_gather([float(net[0].weight.sum()), float(net[1].running_mean.sum())])\n"
        "    assert all(of == sums[0] for of in sums), sums",
        said={JOBS: "'0.weight', '0.bias', '1.running_mean', which are not trained, begin with the values of worker 0"},
    ),
    row(
        "buffers of many types",
        build="plain_make = make\ndef make():\n    net = plain_make()\n"
        "    net.register_buffer('mask', torch.ones(3, dtype=torch.bool))\n"
        "    net.register_buffer('count', torch.tensor(7))\n"
        "    net.register_buffer('bytes', torch.arange(5, dtype=torch.uint8))\n"
        "    net.register_buffer('halves', torch.ones(2, dtype=torch.bfloat16))\n"
        "    net.register_buffer('scratch', torch.ones(4), persistent=False)\n"
        "    net.register_buffer('nothing', None)\n    return net",
    ),
    row(
        "an empty buffer",
        build="plain_make = make\ndef make():\n    net = plain_make()\n"
        "    net.register_buffer('queue', torch.empty(0, 8))\n    return net",
    ),
    row(
        "complex buffers and frozen complex parameters",
        build="plain_make = make\ndef make():\n    net = plain_make()\n"
        "    net.register_buffer('freqs_cis', torch.polar(torch.ones(4), torch.arange(4.0)))\n"
        "    net.phase = nn.Parameter(torch.ones(2, dtype=torch.complex64) * 1j, requires_grad=False)\n    return net",
        loss="F.cross_entropy(nn.Sequential(*list(net)[:3])(x), y) if False else F.cross_entropy(net[2](net[1](net[0](x))), y)",
    ),
    row(
        "buffers that a file cannot have",
        build="plain_make = make\ndef make():\n    net = plain_make()\n"
        "    net.register_buffer('adjacency', torch.eye(3).to_sparse())\n"
        "    net.register_buffer('fine', torch.ones(2, dtype=torch.complex128))\n    return net",
        said={MODES: r"'adjacency' is torch.sparse_coo; 'fine' is torch.complex128: the files of the trained model will "
              "not have it"},
        end="if job.mode == 'plain': del net.adjacency, net.fine",
    ),
    # ---- Epochs, batches, samplers --------------------------------------------
    row(
        "a loop over range()",
        epochs="range(3)",
        refused="the job has one epoch, which is done. For more write `for epoch in job.epochs.N.:`",
    ),
    row(
        "two loops over batches in an epoch",
        epoch_end="for x, y in job.loader(ds, batch_size=4, shuffle=False): opt.zero_grad(); net(x).sum().backward(); opt.step()",
        refused="a second loop over batches in one round of job.epochs",
    ),
    row(
        "a loop over batches after the last epoch",
        end="for x, y in job.loader(ds, batch_size=4, shuffle=False): print(net(x).sum())",
        refused="the job is over, and has no batches any more; to evaluate, take those of a torch.utils.data.DataLoader",
    ),
    row(
        "a loop that is left early",
        after="if i == 1: break",
        refused=r"left after 2 of the \d+ steps of its epoch.*for shorter epochs give job.loader.steps=N",
    ),
    row(
        "a loop that is left with a batch in hand",
        begin="if i == 2: break",
        refused=r"left after 2 of the \d+ steps of its epoch",
    ),
    row("short epochs", loader="job.loader(ds, batch_size=4, shuffle=False, steps=2)"),
    row(
        "short epochs with a scheduler",
        loader="job.loader(ds, batch_size=4, shuffle=False, steps=2)",
        setup="scheduler = torch.optim.lr_scheduler.StepLR(opt, 1, 0.5)",
        epoch_end="scheduler.step()",
        end="assert opt.param_groups[0]['lr'] == 0.1 / 8",
    ),
    row(
        "as many batches as there are",
        setup="batches = job.loader(ds, batch_size=4, shuffle=False)",
        loader="[(0, 0)]",
        step="for _, (x, y) in zip(range(len(batches)), batches):\n    opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()",
    ),
    row(
        "a look at the first batch",
        setup="batches = job.loader(ds, batch_size=4, shuffle=False)",
        loader="batches",
        epoch_begin="example = next(iter(batches))\nheld = iter(batches)\nassert torch.equal(next(held)[0], example[0])",
    ),
    row(
        "a look at a batch before job.epochs()",
        setup="next(iter(job.loader(ds, batch_size=4, shuffle=False)))",
        refused=r"job.epochs\(3\): the job has begun with the first batch, which was taken before, and has one epoch",
    ),
    row("a batch that is left out", begin="if i == 3: continue"),
    row(
        "no step() at all",
        modes=ONE_JOB,
        step="F.cross_entropy(net(x), y).backward()",
        refused=r"an epoch has ended without any optimizer.step\(\). Call step\(\) of what job.optimizer",
    ),
    row(
        "gradients that add up over batches, as people write it",
        step="(F.cross_entropy(net(x), y) / 4).backward()\nif (i + 1) % 4 == 0: opt.step(); opt.zero_grad()",
    ),
    row(
        "the same with Adam, and a rest at the end of an epoch",
        optimizer="torch.optim.Adam(net.parameters(), lr=0.01)",
        step="(F.cross_entropy(net(x), y) / 3).backward()\nif (i + 1) % 3 == 0: opt.step(); opt.zero_grad()",
        epoch_end="opt.zero_grad()",
        apart={("ssp:1", "asp"): "Adam makes more of gradients that come one by one"},
    ),
    row(
        "gradients that add up from the second epoch on",
        step="F.cross_entropy(net(x), y).backward()\nif epoch == 0 or i % 2: opt.step(); opt.zero_grad()",
        refused={JOBS: "was on its way, and optimizer.step.. was not called for its batch.*overlap=False"},
    ),
    row(
        "validation by job.loader",
        epoch_end="for x, y in job.loader(TensorDataset(x, y), batch_size=2, shuffle=False): net(x)",
        refused="To evaluate on other data, take the batches of a torch.utils.data.DataLoader",
    ),
    row(
        "a sampler that is a list",
        build="order = [7 * k % 64 for k in range(64)]",
        loader="job.loader(ds, batch_size=4, sampler=order)",
    ),
    row(
        "a sampler without a seed",
        build="class Shuffled(torch.utils.data.Sampler):\n    def __init__(self): self.random = random.Random()\n"
        "    def __len__(self): return 64\n    def __iter__(self): return iter(self.random.sample(range(64), 64))",
        loader="job.loader(ds, batch_size=4, sampler=Shuffled())",
        refused={JOBS: r"the sampler of worker 1 has drawn another order than that of worker 0"},
        apart={"alone": "it shuffles"},
    ),
    # ---- Rates and rules --------------------------------------------------------
    row(
        "a scheduler that sees each worker's own loss",
        epoch_end="opt.param_groups[0]['lr'] = 0.1 / (1 + epoch + job.rank)",
        said={"allreduce": r"worker 1: step 8: the learning rate is \[0.05\] here and \[0.1\] on worker 0, whose rate counts"},
        apart={("ssp:1", "asp"): "each gradient has the rate of its worker"},
    ),
    row(
        "rates that differ in a step",
        setup="steps = 0",
        after="steps += 1; opt.param_groups[0]['lr'] = 0.1 / (1 + job.rank * (steps == 10))",
        refused={"allreduce": "is not the same on workers 0 and 1.*or a learning rate"},
        apart={("ssp:1", "asp"): "each gradient has the rate of its worker"},
    ),
    row(
        "momentum and a scheduler",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)",
        setup="scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 24)",
        after="scheduler.step()",
    ),
    row(
        "OneCycleLR, which cycles momentum",
        optimizer="torch.optim.SGD([{'params': net[0].parameters()}, {'params': net[2].parameters(), 'momentum': 0.5}], "
        "lr=0.1, momentum=0.9)",
        setup="scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=50)",
        after="scheduler.step()",
    ),
    row(
        "OneCycleLR, which cycles betas",
        optimizer="torch.optim.AdamW(net.parameters(), lr=0.01)",
        setup="scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.01, total_steps=50)",
        after="scheduler.step()",
    ),
    row(
        "CyclicLR, which cycles momentum",
        optimizer="torch.optim.RMSprop(net.parameters(), lr=0.001, momentum=0.9)",
        setup="scheduler = torch.optim.lr_scheduler.CyclicLR(opt, 0.001, 0.01, step_size_up=5)",
        after="scheduler.step()",
        apart={("ssp:1", "asp"): "squares of the first steps differ, where the rate is small"},
    ),
    row(
        "OneCycleLR without momentum at first",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.1)",
        setup="scheduler = torch.optim.lr_scheduler.OneCycleLR(opt, 0.1, total_steps=50)",
        after="scheduler.step()",
        refused="without momentum at the start only lr may change",
    ),
    row(
        "a momentum of each worker's own",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)",
        epoch_end="opt.param_groups[0]['momentum'] = 0.8 - 0.1 * epoch - 0.1 * job.rank",
        said={"allreduce": r"worker 1: step 8: the momentum is \[0.7000.*\] here and \[0.8\] on worker 0, whose rate counts"},
        apart={("ssp:1", "asp"): "each gradient has the momentum of its worker"},
    ),
    row("Adam with amsgrad", optimizer="torch.optim.Adam(net.parameters(), lr=0.01, amsgrad=True, foreach=False)"),
    row(
        "dampening, going up",
        optimizer="torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, dampening=0.5, maximize=True)",
        loss="-F.cross_entropy(net(x), y)",
    ),
    row("NAdam", optimizer="torch.optim.NAdam(net.parameters(), lr=0.01, foreach=True)"),
    row("RAdam", optimizer="torch.optim.RAdam(net.parameters(), lr=0.01)",
        apart={("ssp:1", "asp"): "it begins by the count of updates, which are two in a step"}),
    row("LBFGS", optimizer="torch.optim.LBFGS(net.parameters())", step="pass",
        refused="LBFGS cannot run on servers: it computes the loss several times in a step"),
    row("AdamW in groups", optimizer="torch.optim.AdamW([{'params': net[0].parameters(), 'lr': 0.01}, "
        "{'params': net[2].parameters(), 'weight_decay': 0.1}], lr=0.003)"),
    row(
        "gradients of two batches",
        loader="job.loader(ds, batch_size=2, shuffle=False, accumulate=2)",
        step="(F.cross_entropy(net(x), y) / 2).backward()\nif i % 2: opt.step(); opt.zero_grad()",
        apart={MODES: "plain PyTorch has no accumulate="},
    ),
    # ---- Several optimizers, several steps for a batch ------------------------------
    row(
        "a GAN",
        build=GAN,
        optimizer="torch.optim.SGD(net['d'].parameters(), lr=0.1)",
        setup="of_d, of_g = opt, job.optimizer(torch.optim.SGD(net['g'].parameters(), lr=0.2))",
        step=OF_D + "\n" + OF_G,
    ),
    row(
        "a generator that steps in every third batch",
        build=GAN,
        optimizer="torch.optim.SGD(net['d'].parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)",
        setup="of_d, of_g = opt, job.optimizer(torch.optim.AdamW(net['g'].parameters(), lr=0.01, weight_decay=0.1))",
        step=OF_D + "\nif i % 3 == 2:\n    " + OF_G,
        # After the last one the job may be over, where only one worker is given the state.
        epoch_end="job.evaluate(lambda net: None)\nif epoch < 2:\n    for one in (of_d, of_g): assert one.state_dict()['state']",
        apart={("ssp:1", "asp"): "momentum and Adam make more of gradients that come one by one"},
    ),
    row(
        "three steps of the critic for each of the generator",
        build=GAN,
        before_optimizer="critic = {} if job.mode == 'plain' else {'steps_per_batch': 3}",
        optimizer="torch.optim.Adam(net['d'].parameters(), lr=0.01), **critic",
        setup="of_d, of_g = opt, job.optimizer(torch.optim.Adam(net['g'].parameters(), lr=0.02))",
        step="for _ in range(3):\n    " + OF_D.replace("\n", "\n    ") + "\n" + OF_G,
        apart={("ssp:1", "asp"): "Adam makes more of gradients that come one by one"},
    ),
    row(
        "more steps for a batch than the job knows of",
        modes=ONE_JOB,
        step="for _ in range(2): opt.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step()",
        refused=r"no step is open; it is called once for each step of a job.loader\(\).*steps_per_batch=N",
    ),
    row(
        "a GAN whose critic steps too often",
        modes=ONE_JOB,
        build=GAN,
        optimizer="torch.optim.SGD(net['d'].parameters(), lr=0.1)",
        setup="of_d, of_g = opt, job.optimizer(torch.optim.SGD(net['g'].parameters(), lr=0.2))",
        step=OF_D + "\n" + OF_D + "\n" + OF_G,
        refused=r"it was called 3 times for one batch, and job.optimizer\(\) was told of 2; .*steps_per_batch=N",
    ),
    row(
        "two optimizers with a parameter in common",
        modes=ONE_JOB,
        setup="job.optimizer(torch.optim.SGD(net[0].parameters(), lr=0.1))",
        refused="job.optimizer.*: '0.weight' belongs to an optimizer that was given before",
    ),
    row(
        "two optimizers for one loss",
        optimizer="torch.optim.SGD(net[0].parameters(), lr=0.1)",
        setup="other = job.optimizer(torch.optim.SGD(net[2].parameters(), lr=0.05))",
        step="opt.zero_grad(); other.zero_grad(); F.cross_entropy(net(x), y).backward(); opt.step(); other.step()",
        loader="job.loader(ds, batch_size=4, shuffle=False)",
    ),
    row(
        "weights of a critic that are clamped",
        build=GAN,
        optimizer="torch.optim.SGD(net['d'].parameters(), lr=0.1)",
        setup="of_d, of_g = opt, job.optimizer(torch.optim.SGD(net['g'].parameters(), lr=0.2))",
        step=OF_D + "\nfor p in net['d'].parameters(): p.data.clamp_(-0.1, 0.1)\n" + OF_G,
        refused={SERVERS: CHANGED},
        check="max(v.abs().max() for k, v in state.items() if k[0] == 'd') <= 0.10001",
    ),
    # ---- Mixed precision, batch statistics --------------------------------------------
    row(
        "a GradScaler",
        build=SCALER,
        setup="scaler = Scaler()",
        step="opt.zero_grad(); scaler.scale(F.cross_entropy(net(x), y)).backward()\nscaler.step(opt); scaler.update()",
        end="assert scaler.factor == 1024.0, scaler.factor",
    ),
    row(
        "a GradScaler whose gradients overflow in some steps of one worker, with clipping",
        build=SCALER,
        setup="scaler = Scaler()",
        step="opt.zero_grad()\nbad = i in (1, 2) and job.rank == (1 if job.mode not in ('plain', 'alone') else 0)\n"
        "scaler.scale(F.cross_entropy(net(x), y) * (float('inf') if bad else 1)).backward()\n"
        "scaler.unscale_(opt); nn.utils.clip_grad_norm_(net.parameters(), 0.5)\nscaler.step(opt); scaler.update()",
        end="worker = 'one' if job.mode in ('ssp:1', 'asp') and job.rank == 0 else 'all'\n"
        "assert scaler.factor == (1024.0 if worker == 'one' else 1024.0 / 64), scaler.factor",
        apart={("ssp:1", "asp"): "only the worker with the overflow skips its step"},
    ),
    row(
        "SyncBatchNorm",
        build="other = TensorDataset(torch.randn(64, 8, generator=torch.Generator().manual_seed(2)), y)\n"
        "def make():\n    torch.manual_seed(5)\n    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 3), nn.BatchNorm1d(3, affine=False))\n"
        "    return net if job.mode == 'plain' else nn.SyncBatchNorm.convert_sync_batchnorm(net)",
        loader="job.loader(other, batch_size=4, shuffle=False)",
        epoch_end="job.evaluate(accuracy)",
        refused={("ssp:1", "asp"): "'1' is a SyncBatchNorm, which waits for the batches of all workers.*use --mode bsp or allreduce"},
    ),
    # ---- Loading ----------------------------------------------------------------------
    row("drop_last", modes=ONE_JOB, loader="job.loader(ds, batch_size=4, shuffle=False, drop_last=True)"),
    row(
        "workers of a DataLoader that stay",
        modes=ONE_JOB,
        setup="batches = job.loader(ds, batch_size=4, shuffle=False, **(dict(num_workers=1, persistent_workers=True, "
        "multiprocessing_context='fork') if job.mode != 'plain' else {}))",
        loader="batches",
    ),
    row(
        "a sampler without an end",
        modes=ONE_JOB,
        build="class Endless(torch.utils.data.Sampler):\n    def __init__(self): pass\n"
        "    def __iter__(self): return (k * 7 % 64 for k in itertools.count())",
        loader="job.loader(ds, batch_size=4, sampler=Endless(), steps=3)",
    ),
    row(
        "a sampler without an end, and without steps",
        modes=ONE_JOB,
        build="class Endless(torch.utils.data.Sampler):\n    def __init__(self): pass\n"
        "    def __iter__(self): return (k * 7 % 64 for k in itertools.count())",
        loader="job.loader(ds, batch_size=4, sampler=Endless())",
        refused="sampler is a Endless without a length, so an epoch has no end; say with steps=",
    ),
    row(
        "a sampler of 1e10 numbers",
        modes=ONE_JOB,
        build="class Many(torch.utils.data.Sampler):\n    def __init__(self): pass\n    def __len__(self): return 10**10\n"
        "    def __iter__(self): return (k * 7 % 64 for k in range(10**10))",
        loader="job.loader(ds, batch_size=4, sampler=Many(), steps=3)",
    ),
    row(
        "a sampler of 1e10 numbers, and no steps",
        modes=ONE_JOB,
        loader="job.loader(ds, batch_size=4, sampler=torch.utils.data.RandomSampler(ds, replacement=True, num_samples=10**10))",
        refused="sampler has 10000000000 numbers in an epoch, and at most 33554432 are kept; say with steps=",
    ),
    # ---- Modules ------------------------------------------------------------------
    row("evaluation", epoch_end="job.evaluate(accuracy)"),
    row(
        "validation in the loop, the last epoch's, too",
        setup="losses = []",
        epoch_end="losses.append(F.cross_entropy(net(ds.tensors[0]), ds.tensors[1]).item())",
        end="now = F.cross_entropy(net(ds.tensors[0]), ds.tensors[1]).item()\n"
        "if job.rank == 0 and job.mode not in ('ssp:1', 'asp'): assert losses[0] > losses[1] > losses[2] == now, (losses, now)",
    ),
    row(
        "evaluation of a module that keeps a tensor of forward",
        build="class Net(nn.Sequential):\n    def forward(self, x):\n        self.attention = self[0](x)\n"
        "        self.seen = {'last': [self.attention]}\n        return self[2](self[1](self.attention))\n"
        "def make():\n    torch.manual_seed(5)\n    return Net(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        epoch_end="job.evaluate(accuracy)",
    ),
    row(
        "evaluation of old weight_norm",
        build="plain_make = make\ndef make():\n    net = plain_make()\n    nn.utils.weight_norm(net[0])\n    return net",
        epoch_end="job.evaluate(accuracy)",
    ),
    row(
        "evaluation of parametrised weights",
        build="plain_make = make\nclass Bounded(nn.Module):\n    def forward(self, w): return w.clamp(-0.05, 0.05)\n"
        "def make():\n    net = plain_make()\n    nn.utils.parametrize.register_parametrization(net[0], 'weight', Bounded())\n"
        "    return net",
        before_optimizer="import torch.nn.utils.parametrize",
        epoch_end="job.evaluate(accuracy)",
    ),
    row(
        "evaluation of a module with a lock",
        build="plain_make = make\ndef make():\n    net = plain_make()\n    net.lock = threading.Lock()\n"
        "    net[0].cache = {'lock': net.lock, 'owner': net}\n    return net",
        epoch_end="job.evaluate(lambda copy: accuracy(copy) if copy[0].cache['owner'] is copy or job.mode == 'plain' else 1 / 0)",
        said={("alone", "bsp", "allreduce"): r"job.evaluate\(\): lock \(a lock\) cannot be copied"},
    ),
    row(
        "a frozen teacher that follows",
        build="class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        torch.manual_seed(5)\n"
        "        self.net, self.teacher = nn.Linear(8, 3), nn.Linear(8, 3).requires_grad_(False)\n"
        "    def forward(self, x):\n        return self.net(x) + self.teacher(x)\nmake = Net",
        begin="with torch.no_grad(): [t.lerp_(p, 0.1) for p, t in zip(net.net.parameters(), net.teacher.parameters())]",
        epoch_end="job.evaluate(accuracy)",
    ),
    row(
        "a buffer that grows",
        build="class Net(nn.Sequential):\n    def forward(self, x):\n        if self.training: self.queue = torch.cat([self.queue, x[:1].detach()])\n"
        "        return super().forward(x)\n"
        "def make():\n    torch.manual_seed(5)\n    net = Net(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))\n"
        "    net.register_buffer('queue', torch.zeros(1, 8))\n    return net",
        epoch_end="job.evaluate(accuracy)",
    ),
    row(
        "evaluate() with a result",
        epoch_end="job.evaluate(accuracy(net))",
        refused=r"job.evaluate\(\): a float is not a function; give the function and not what it returns",
    ),
    row(
        "convolution, channels last, in place",
        build="def make():\n    torch.manual_seed(5)\n"
        "    net = nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 4, 2), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(4, 3))\n"
        "    return net.to(memory_format=torch.channels_last)",
        before_optimizer="assert not net[1].weight.is_contiguous()",
    ),
    row(
        "LSTM",
        build="class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        torch.manual_seed(5)\n"
        "        self.lstm, self.last = nn.LSTM(2, 5, batch_first=True), nn.Linear(5, 3)\n"
        "    def forward(self, x):\n        return self.last(self.lstm(x.reshape(-1, 4, 2))[0][:, -1])\nmake = Net",
        epoch_end="job.evaluate(accuracy)",
    ),
    row(
        "sparse gradients of an embedding",
        build="class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        torch.manual_seed(5)\n"
        "        self.words, self.last = nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)\n"
        "    def forward(self, x):\n        return self.last(self.words(x[:, :4].abs().long().clamp(max=8)).mean(1))\nmake = Net",
    ),
    row(
        "weights of bfloat16",
        build="plain_make = make\nmake = lambda: plain_make().bfloat16()",
        loss="F.cross_entropy(net(x.bfloat16()).float(), y)",
        apart={MODES: "the job keeps the bits that bfloat16 has not"},
    ),
    row("a copy of the model in the loop", epoch_end="import copy; copy.deepcopy(net)(ds.tensors[0]); torch.save(net, os.devnull)"),
    # On all workers, after the last step, too: the job waits for the script.
    row("state_dict of both in the loop", epoch_end="net.state_dict(); opt.state_dict()"),
]


def _load(path) -> Dict[str, torch.Tensor]:
    """A safetensors file, read without slackline, which is not for this process."""
    import json
    import struct

    data = path.read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    types = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "I64": torch.int64,
             "BOOL": torch.bool, "U8": torch.uint8, "C64": torch.complex64, "F16": torch.float16, "I32": torch.int32}
    state = {}
    for key, entry in json.loads(data[8 : 8 + size]).items():
        if key != "__metadata__":
            begin, end = entry["data_offsets"]
            part = bytearray(data[8 + size + begin : 8 + size + end])
            dtype = types[entry["dtype"]]
            flat = torch.frombuffer(part, dtype=dtype) if part else torch.empty(0, dtype=dtype)
            state[key] = flat.reshape(entry["shape"])
    return state


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """What plain PyTorch makes of a row, with so many workers' batches; once for all modes."""
    made: Dict = {}

    def of(row: Row, workers: int):
        if (row.name, workers) not in made:
            folder = tmp_path_factory.mktemp("plain")
            ended = forked.alone(folder, row.script(), {"PLAIN": str(workers)}).succeeded()
            made[row.name, workers] = torch.load(folder / "begin-0.pt"), torch.load(folder / "end.pt")
        return made[row.name, workers]

    return of


def _distance(a: Dict[str, torch.Tensor], b: Dict[str, torch.Tensor], whole: bool = True) -> float:
    """Of the numbers that are no integers; ``whole``: all else is equal."""
    if not whole:
        alike = [name for name in a if name in b and a[name].shape == b[name].shape]
        a, b = ({name: of[name] for name in alike} for of in (a, b))
    assert a.keys() == b.keys(), (a.keys(), b.keys())
    total = 0.0
    for name in a:
        assert a[name].shape == b[name].shape and a[name].dtype == b[name].dtype, (name, a[name], b[name])
        if a[name].is_floating_point() or a[name].is_complex():
            difference = a[name].to(torch.complex128) - b[name].to(torch.complex128)
            total += float(difference.abs().square().sum())
        else:
            assert not whole or torch.equal(a[name], b[name]), name
    return total**0.5


@pytest.mark.parametrize(
    "row, mode",
    [(row, mode) for row in ROWS for mode in row.modes],
    ids=[f"{row.name.replace(' ', '-')}-{mode}" for row in ROWS for mode in row.modes],
)
def test_row(tmp_path, plain, row, mode):
    script = row.script()
    if mode == "alone":
        ended = [forked.alone(tmp_path, script)]
    else:
        ended = forked.job(tmp_path, script, mode)
    output = "\n".join(one.output for one in ended)
    if mode in row.refused:
        assert all(one.code != 0 for one in ended), output
        assert re.search(row.refused[mode], output), output
        return
    assert all(one.code == 0 for one in ended), output
    assert re.search(row.said.get(mode, ""), output), output
    state = _load(tmp_path / "end.safetensors")
    if row.check:
        assert eval(row.check, {"state": state, "torch": torch, "max": max}), (row.check, state)
    if mode in row.apart:
        return
    begin, end = plain(row, 1 if mode == "alone" else 2)
    way, distance = _distance(begin, end, whole=False), _distance(end, state)
    if mode in ("ssp:1", "asp"):
        assert distance < 0.3 * way, (distance, way)
    else:
        assert distance < 1e-5, (distance, way)


ORDER = """
numbered = TensorDataset(torch.arange(64.0).reshape(64, 1))
{sampler}
job.model(net := nn.Linear(1, 1))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=1e-9))
orders = []
for epoch in job.epochs(3):
    seen = []
    for (x,) in job.loader(numbered, {give}):
        seen += x[:, 0].tolist()
        opt.zero_grad(); net(x).mean().backward(); opt.step()
    of_all = sum(job.all_gather(seen), [])
    assert sorted(of_all) == list(range(64)), sorted(of_all)
    orders.append(of_all)
assert orders[0] != orders[1] != orders[2]
print("each once", random.random())
"""


@pytest.mark.parametrize("mode", ["bsp", "asp", "allreduce"])
@pytest.mark.parametrize(
    "draws, of_python",
    [
        ("rows = list(range(64)); random.shuffle(rows)", False),
        ("rows = np.random.permutation(64).tolist()", False),
        ("rows = torch.randperm(64).tolist()", False),
        ("rows = self.random.permutation(64).tolist()", False),
        ("rows = random.sample(range(64), 32); rows += [r for r in range(64) if r not in rows]", True),
    ],
    ids=["random", "numpy", "torch", "own-generator", "batches"],
)
def test_workers_share_the_order_that_a_sampler_draws(tmp_path, mode, draws, of_python):
    sampler = f"""
import numpy as np
class Own(torch.utils.data.Sampler):
    def __init__(self): self.random = np.random.default_rng(7)
    def __len__(self): return 16 if {of_python} else 64
    def __iter__(self):
        {draws}
        return iter([rows[i : i + 4] for i in range(0, 64, 4)] if {of_python} else rows)
sampler = Own()
"""
    give = "batch_sampler=sampler" if of_python else "batch_size=4, sampler=sampler"
    script = HEAD + ORDER.replace("{sampler}", sampler).replace("{give}", give)
    ended = forked.job(tmp_path, script, mode)
    assert all(one.code == 0 for one in ended), "\n".join(one.output for one in ended)
    # The script's own random numbers, which differ between workers, go on as if there were no sampler.
    numbers = {re.search(r"each once (\S+)", one.output)[1] for one in ended}
    assert len(numbers) == 2


LOADERS = """
numbered = TensorDataset(torch.arange(64.0).reshape(64, 1))
class Streaming(torch.utils.data.Sampler):
    def __init__(self): self.random = random.Random(7)
    def __len__(self): return 64
    def __iter__(self): return (self.random.randrange(64) for _ in range(64))
sampler, epochs = {sampler}, 3
def load(steps=None, **size): return job.loader(numbered, **(size or dict(batch_size=4)), sampler=sampler, steps=steps)
job.model(net := nn.Linear(1, 1))
opt = job.optimizer(torch.optim.SGD(net.parameters(), lr=1e-9))
{before}
for epoch in job.epochs(epochs):
    for (x,) in loader:
        opt.zero_grad(); net(x).mean().backward(); opt.step()
    {after}
print("all steps", job.steps)
"""
_LOOK = "epochs = 1; assert len(next(iter(load(2, batch_size=2)))[0]) == 2"
_FIRST_NEEDS = "numbers are an epoch of this loader, and (8|16) of that which was made first"


@pytest.mark.parametrize("mode", ["alone", "bsp"])
@pytest.mark.parametrize(
    "sampler, before, after, refused",
    [
        ("torch.utils.data.RandomSampler(numbered)", "loader = load(2); job.rank or load()", "pass", ""),
        ("torch.utils.data.RandomSampler(numbered)", "loader = load(2)", "job.rank or load()", ""),
        ("torch.utils.data.RandomSampler(numbered)", f"{_LOOK}; loader = load(2)", "pass", ""),
        ("Streaming()", "loader = load(2); job.rank or load(1)", "job.rank or load(1)", ""),
        ("Streaming()", f"loader = load(2); {_LOOK}", "pass", ""),
        ("Streaming()", "loader = load(2); load()", "pass", _FIRST_NEEDS),
        ("Streaming()", "loader = load(2)", "job.rank or load()", _FIRST_NEEDS),
        ("Streaming()", f"{_LOOK}; loader = load(2)", "pass", "numbers are an epoch of this loader, and [48] of that"),
    ],
)
def test_loaders_of_one_sampler_may_have_other_epochs_on_other_workers(tmp_path, mode, sampler, before, after, refused):
    script = HEAD + LOADERS.replace("{sampler}", sampler).replace("{before}", before).replace("{after}", after)
    ended = [forked.alone(tmp_path, script)] if mode == "alone" else forked.job(tmp_path, script, mode)
    output = "\n".join(one.output for one in ended)
    if refused:
        assert all(one.code == 1 for one in ended) and re.search(refused, output), output
    else:
        assert all(one.code == 0 and "all steps" in one.output for one in ended), output
