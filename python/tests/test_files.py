"""Safetensors files."""

import random

import pytest
import torch

import slackline


def test_what_is_saved_is_loaded(tmp_path):
    state = {
        "a": torch.randn(3, 4),
        "none": torch.tensor(2.5),
        "count": torch.tensor([7], dtype=torch.int64),
        "mask": torch.tensor([True, False]),
        "half": torch.randn(5).bfloat16(),
    }
    slackline.save(state, tmp_path / "m.safetensors")
    loaded = slackline.load(tmp_path / "m.safetensors")
    assert loaded.keys() == state.keys()
    for name, tensor in state.items():
        assert loaded[name].dtype == tensor.dtype and torch.equal(loaded[name], tensor)


def test_damaged_files_are_value_errors(tmp_path):
    slackline.save({"a": torch.randn(3, 4), "b": torch.zeros(2)}, tmp_path / "m")
    good = (tmp_path / "m").read_bytes()
    chance = random.Random(1)
    damaged = tmp_path / "damaged"
    refused = 0
    for _ in range(3000):
        content = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        if chance.random() < 0.3:
            content = content[: chance.randrange(len(content))]
        damaged.write_bytes(content)
        try:
            slackline.load(damaged)
        except ValueError as error:
            assert str(damaged) in str(error)
            refused += 1
    assert refused > 1000


def test_a_missing_file_and_a_folder_that_cannot_be_written_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        slackline.load(tmp_path / "nowhere")
    with pytest.raises((ValueError, slackline.JobError), match="no/such/m"):
        slackline.save({"a": torch.zeros(1)}, tmp_path / "no/such/m")
