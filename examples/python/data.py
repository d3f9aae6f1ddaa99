"""Data sets of the examples: from files where there are some, else made from a seed."""

import argparse
import gzip
import inspect
import math
import pathlib

import torch
from torch.utils.data import TensorDataset


def read_idx(folder, name):
    """One of MNIST's files, plain or .gz, as a tensor of bytes."""
    path = pathlib.Path(folder) / "mnist" / name
    if path.exists():
        content = path.read_bytes()
    else:
        content = gzip.decompress(path.with_name(f"{name}.gz").read_bytes())
    sizes = [int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(content[3])]
    values = torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=4 + 4 * content[3])
    return values.reshape(sizes)


def mnist(data_dir):
    """Train and test set of MNIST, normalised; points around ten centers without a folder."""
    if not data_dir:
        return points(8000, seed=2), points(1000, seed=3)
    return tuple(
        TensorDataset(
            (read_idx(data_dir, f"{part}-images-idx3-ubyte").flatten(1) / 255 - 0.1307) / 0.3081,
            read_idx(data_dir, f"{part}-labels-idx1-ubyte").long(),
        )
        for part in ("train", "t10k")
    )


def points(count, seed, features=784, classes=10):
    """Normal noise around one center for each class, the same in every process."""
    centers = torch.randn(classes, features, generator=torch.Generator().manual_seed(1)) / 4
    noise = torch.randn(count, features, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(count) % classes
    return TensorDataset(centers[labels] + noise, labels)


def shapes(count, seed, classes=10, size=32):
    """Colour images, size x size, of stripes: direction, width and colour say the class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    y, x = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    angle = labels[:, None, None] * math.pi / classes
    phase = 6.3 * torch.rand(count, 1, 1, generator=generator)
    stripes = torch.sin((x * angle.cos() + y * angle.sin()) * (0.4 + 0.05 * (labels % 3))[:, None, None] + phase)
    tint = torch.stack([torch.cos(labels * k) for k in (1.0, 2.0, 3.0)], 1)[:, :, None, None]
    noise = torch.randn(count, 3, size, size, generator=generator)
    return TensorDataset(stripes[:, None] * (1 + 0.3 * tint) + 4.0 * noise, labels)


def ratings(count, seed, users=300, items=200, factors=4):
    """Triples of user, item and rating, made from hidden factors and a little noise."""
    generator = torch.Generator().manual_seed(1)
    of_users = torch.randn(users, factors, generator=generator)
    of_items = torch.randn(items, factors, generator=generator)
    generator = torch.Generator().manual_seed(seed)
    user = torch.randint(users, (count,), generator=generator)
    item = torch.randint(items, (count,), generator=generator)
    rating = (of_users[user] * of_items[item]).sum(1) / factors**0.5
    return TensorDataset(user, item, rating + 0.1 * torch.randn(count, generator=generator))


def characters(path=None, length=64):
    """A text cut into pieces: a training set, a test set, and how many characters there are.

    A piece has length + 1 characters, as numbers; what the text is without a path is Python's
    own modules. The last tenth of the text is the test set.
    """
    if path is None:
        modules = (argparse, gzip, inspect, pathlib)
        text = "".join(inspect.getsource(module) for module in modules)
    else:
        text = pathlib.Path(path).read_text(errors="replace")
    number_of = {character: number for number, character in enumerate(sorted(set(text)))}
    numbers = torch.tensor([number_of[character] for character in text])
    pieces = numbers.unfold(0, length + 1, length // 2).contiguous()
    test = max(1, len(pieces) // 10)
    return TensorDataset(pieces[:-test]), TensorDataset(pieces[-test:]), len(number_of)


def accuracy(net, dataset, batch_size=500):
    """The part of the examples for which the largest output is that of the label."""
    right = 0
    for begin in range(0, len(dataset), batch_size):
        inputs, labels = dataset[begin : begin + batch_size]
        right += (net(inputs).argmax(1) == labels).sum().item()
    return right / len(dataset)
