"""Pieces of a batch, put together: what default_collate() makes of all examples at once."""

import collections
import random

import numpy
import pytest
import torch
from slackline._data import pieces as batch_pieces
from torch.utils.data import default_collate

Point = collections.namedtuple("Point", "place name")


class Words(dict):
    """A mapping of a script's own."""


MAKE = {
    "tensor": lambda i: torch.full((2, 3), float(i)),
    "tensor without dimensions": lambda i: torch.tensor(i),
    "part of a larger tensor": lambda i: torch.arange(100).reshape(10, 10)[:, i % 10],
    "bfloat16": lambda i: torch.full((2,), float(i), dtype=torch.bfloat16),
    "empty tensor": lambda i: torch.empty(0, 4),
    "array": lambda i: numpy.full((2,), i, dtype=numpy.int16),
    "number of NumPy": lambda i: numpy.float32(i),
    "int": lambda i: i,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 2 == 0,
    "string": lambda i: f"example {i}" if i else "",
    "bytes": lambda i: bytes([i]),
    "tuple": lambda i: (torch.tensor([i, i]), i, f"{i}"),
    "list": lambda i: [torch.tensor([i]), [i, f"{i}"]],
    "empty tuple": lambda i: (),
    "dict": lambda i: {"x": torch.tensor([i]), "deep": {"name": f"{i}", "pair": (i, float(i))}},
    "mapping of a script's own": lambda i: Words(x=torch.tensor([i]), y=f"{i}"),
    "default dict": lambda i: collections.defaultdict(int, x=i),
    "named tuple": lambda i: Point(place=torch.tensor([i]), name=f"{i}"),
}


def assert_same(mine, theirs):
    assert type(mine) is type(theirs)
    if isinstance(mine, torch.Tensor):
        assert mine.dtype == theirs.dtype and torch.equal(mine, theirs)
    elif isinstance(mine, dict):
        assert list(mine) == list(theirs)
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, (list, tuple)):
        assert len(mine) == len(theirs)
        for one, other in zip(mine, theirs):
            assert_same(one, other)
    else:
        assert numpy.array_equal(mine, theirs)


@pytest.mark.parametrize("what", MAKE)
def test_joined_is_what_default_collate_makes_of_all(what):
    for count, pieces in ((1, 1), (2, 2), (7, 2), (7, 3), (10, 10), (3, 8)):
        examples = [MAKE[what](i) for i in range(count)]
        parts = batch_pieces.cut(range(count), pieces)
        joined = batch_pieces.joined([default_collate([examples[i] for i in part]) for part in parts])
        assert_same(joined, default_collate(examples))


@pytest.mark.parametrize("what", MAKE)
def test_packed_examples_come_out_as_they_were(what):
    examples = [MAKE[what](i) for i in range(5)]
    parts = batch_pieces.cut(range(5), 2)
    unpacked = batch_pieces.unpacked([batch_pieces.packed([examples[i] for i in part]) for part in parts])
    assert_same(unpacked, examples)


def test_a_packed_part_of_a_large_tensor_is_small():
    assert len(batch_pieces.packed([torch.zeros(1000, 1000)[3]])) < 5000


def test_pieces_are_even_and_whole():
    for _ in range(200):
        rows = list(range(random.randint(1, 50)))
        parts = batch_pieces.cut(rows, random.randint(1, 12))
        assert [row for part in parts for row in part] == rows
        sizes = {len(part) for part in parts}
        assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    "pieces, error, said",
    [
        (([1, 2], [2.5, 1.0]), TypeError, "has torch.float64 and torch.int64 at the same place"),
        (([torch.zeros(2)], [torch.zeros(3)]), RuntimeError, "Sizes of tensors must match"),
        (([(1, 2)], [(1, 2, 3)]), RuntimeError, "should be of equal size"),
        (([{"x": 1}], [{"y": 1}]), KeyError, "x"),
    ],
)
def test_examples_that_make_no_batch_are_an_error(pieces, error, said):
    with pytest.raises(error, match=said):
        batch_pieces.joined([default_collate(list(piece)) for piece in pieces])


def test_what_a_collate_function_of_pytorch_has_made_of_a_class_of_one_s_own():
    with pytest.raises(TypeError, match="batches of object cannot be put together; give collate_fn"):
        batch_pieces.joined([object(), object()])
