"""Data sets of the examples: from files where there are some, else made from a seed."""

import gzip
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
    return TensorDataset(stripes[:, None] * (1 + 0.3 * tint) + 0.8 * noise, labels)


def accuracy(net, dataset, batch_size=500):
    """The part of the examples for which the largest output is that of the label."""
    right = 0
    for begin in range(0, len(dataset), batch_size):
        inputs, labels = dataset[begin : begin + batch_size]
        right += (net(inputs).argmax(1) == labels).sum().item()
    return right / len(dataset)
