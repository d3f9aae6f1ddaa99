"""Images of a run: PNG files, decoded again, and what is refused."""

import struct
import subprocess
import zlib

import numpy
import pytest
import torch
from slackline._tensors.images import _IMAGES_MAX, _NAMES_MAX, Images, encode_png
from support import BIN, USUAL, run_alone, run_job


def decode_png(png: bytes) -> torch.Tensor:
    """By its own code: channels x height x width. Fails on a wrong checksum."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    chunks, at = [], 8
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack_from(">I", png, at + 8 + size)[0] == zlib.crc32(kind + data)
        chunks.append((kind, data))
        at += 12 + size
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, color, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert depth == 8 and rest == [0, 0, 0]
    channels = {0: 1, 2: 3, 6: 4}[color]
    rows = torch.frombuffer(bytearray(zlib.decompress(chunks[1][1])), dtype=torch.uint8)
    rows = rows.reshape(height, 1 + width * channels)
    assert rows[:, 0].count_nonzero() == 0
    return rows[:, 1:].reshape(height, width, channels).permute(2, 0, 1)


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 1, 1), (3, 4, 9), (4, 6, 2)])
def test_a_png_has_the_pixels(shape):
    pixels = torch.randint(256, shape).to(torch.uint8)
    assert torch.equal(decode_png(encode_png(pixels)), pixels)
    assert torch.equal(decode_png(encode_png(pixels.numpy())), pixels)
    for dtype in (torch.float32, torch.float64):
        assert torch.equal(decode_png(encode_png(pixels.to(dtype) / 255)), pixels)
    if shape[0] == 1:
        assert torch.equal(decode_png(encode_png(pixels[0])), pixels)


def test_parts_of_tensors_and_those_of_a_graph_are_images():
    image = torch.rand(3, 8, 8, requires_grad=True)
    expected = (image.detach().permute(0, 2, 1) * 255).round().to(torch.uint8)
    assert torch.equal(decode_png(encode_png(image.permute(0, 2, 1))), expected)
    assert decode_png(encode_png(numpy.ones((2, 2)))).tolist() == [[[255, 255], [255, 255]]]
    half = decode_png(encode_png(torch.full((2, 2), 0.5, dtype=torch.bfloat16)))
    assert half.unique().tolist() == [128]


@pytest.mark.parametrize(
    "image, said",
    [
        (torch.zeros(5), r"shape \[5\]; height x width, or"),
        (torch.zeros(2, 5, 5), r"shape \[2, 5, 5\].* 1, 3 or 4 channels, is required$"),
        (torch.zeros(28, 28, 3), r"With channels last, permute\(2, 0, 1\)"),
        (torch.zeros(3, 0, 4), "height and width of 1 to 2048"),
        (torch.zeros(1, 2049, 2), "height and width of 1 to 2048"),
        (torch.tensor([[0.0, 1.5]]), r"values from 0 to 1.5; float in \[0, 1\].*clamp"),
        (torch.tensor([[-0.5, 1.0]]), "values from -0.5 to 1"),
        (torch.tensor([[float("nan"), 1.0]]), "values from nan"),
        (torch.zeros(2, 2, dtype=torch.int64), "is torch.int64; float in"),
        (torch.zeros(2, 2, dtype=torch.bool), "is torch.bool; float in"),
    ],
)
def test_what_is_no_image_is_refused(image, said):
    with pytest.raises(ValueError, match=said):
        encode_png(image)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "..\\x", ".hidden", "a\0", "ä", "x" * 65, None])
def test_a_name_is_no_path(tmp_path, name):
    with pytest.raises(ValueError, match="letters, digits"):
        Images(str(tmp_path)).write(name, 1, torch.zeros(2, 2))
    assert list(tmp_path.iterdir()) == []


def test_images_are_bounded(tmp_path, capfd):
    images = Images(str(tmp_path))
    for step in range(_IMAGES_MAX + 2):
        images.write("many", step, torch.zeros(1, 1))
    files = list((tmp_path / "images" / "many").iterdir())
    assert len(files) == _IMAGES_MAX and all(file.suffix == ".png" for file in files)
    assert capfd.readouterr().err.count("there are 1000 images of 'many', and no more are written") == 1
    # One of a step that is there is replaced, also by a process that comes later.
    again = Images(str(tmp_path))
    again.write("many", 5, torch.ones(1, 1))
    again.write("many", _IMAGES_MAX, torch.ones(1, 1))
    assert decode_png((tmp_path / "images/many/5.png").read_bytes()).item() == 255
    assert len(list((tmp_path / "images" / "many").iterdir())) == _IMAGES_MAX
    for number in range(1, _NAMES_MAX):
        images.write(f"name-{number}", 0, torch.zeros(1, 1))
    with pytest.raises(ValueError, match="'one-more' is a name more than the 100"):
        images.write("one-more", 0, torch.zeros(1, 1))


WITH_IMAGE = USUAL.replace(
    "    job.evaluate", "    if job.rank == 0:\n        job.log_image('weight', net[0].weight.sigmoid())\n    job.evaluate"
)


def test_a_job_has_them_in_its_folder(tmp_path):
    run = run_job(tmp_path, WITH_IMAGE).succeeded()
    files = sorted(str(path.relative_to(run.folder)) for path in (run.folder / "images").rglob("*.*"))
    assert files == ["images/weight/30.png", "images/weight/60.png"]
    assert decode_png((run.folder / files[0]).read_bytes()).shape == (1, 16, 4)
    subprocess.run([str(BIN / "slackline"), "report", str(run.folder)], check=True)
    (events,) = (run.folder / "tensorboard").iterdir()
    assert events.read_bytes().count(b"images/weight") == 2


def test_alone_they_need_a_folder(tmp_path):
    ended = run_alone(tmp_path, WITH_IMAGE).succeeded()
    assert ended.output.count("there is no folder, so no image is written") == 1
    assert not (tmp_path / "images").exists()
    run_alone(tmp_path, WITH_IMAGE.replace("join()", "join(out='mine')")).succeeded()
    assert (tmp_path / "mine/images/weight/120.png").exists()
