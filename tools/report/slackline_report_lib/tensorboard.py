"""Event files that TensorBoard reads, one per run.

A file is a sequence of records (tensorflow/tsl/lib/io/record_writer.h): length
as uint64, masked CRC of the length as uint32, data, masked CRC of the data, all
little endian. The CRC is CRC-32C (RFC 3720, appendix B.4); masked it is rotated
right by 15 bits plus 0xa282ead8 (tensorflow/tsl/lib/hash/crc32c.h). The data are
Protocol Buffers, tensorflow.Event of event.proto: wall_time = 1 (double),
step = 2 (int64), file_version = 3 (string), summary = 5; tensorflow.Summary of
summary.proto: value = 1, in it tag = 1 (string), simple_value = 2 (float) or
image = 4, in it height = 1, width = 2, colorspace = 3 (channels; int32 all),
encoded_image_string = 4 (bytes), or metadata = 9 and tensor = 8 for a text.
"""

import datetime
import math
import pathlib
import struct
from typing import Any

from . import figures, files, load


def write_event_files(experiment: load.Experiment, folder: pathlib.Path) -> int:
    """One file in folder/<last part of the run's folder>/ for each run with
    metrics or images. Returns how many."""
    runs = [run for run in experiment.runs() if run.records or run.images]
    for run in runs:
        write_event_file(run, folder / pathlib.PurePath(run.folder).name)
    return len(runs)


def write_event_file(run: load.Run, place: pathlib.Path) -> None:
    """In place of one that an earlier report left there."""
    place.mkdir(parents=True, exist_ok=True)
    for old in place.glob("events.out.tfevents.*.slackline"):
        old.unlink()
    files.write_bytes(place / file_name(unix_seconds(run.started)), event_file(run))


def file_name(started: float) -> str:
    return f"events.out.tfevents.{int(started):010d}.slackline"


def unix_seconds(started: Any) -> float:
    """From such a number, or a date and time as in ISO 8601. 0 if it is neither:
    TensorBoard's relative times then are right still."""
    if isinstance(started, str):
        text = started.strip().replace("Z", "+00:00")
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            return 0.0
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.timezone.utc)
        return moment.timestamp()
    value = load.number(started)
    return value if 0 <= value < 1e11 else 0.0


def event_file(run: load.Run) -> bytes:
    started = unix_seconds(run.started)
    summaries = [
        (started + of.seconds, of.step, _value(tag, _scalar(value)))
        for of in figures.of_run(run)
        for tag, value in of.values.items()
    ] + [(image.written, image.step, _value(f"images/{image.name}", _image(image))) for image in run.images]
    summaries.sort(key=lambda summary: summary[0])
    return beginning(started) + b"".join(_summary(*summary) for summary in summaries)


def beginning(started: float) -> bytes:
    """What an event file begins with."""
    return _record(_event(started) + b"\x1a" + _sized(b"brain.Event:2"))  # Field 3, sized.


def scalar_events(started: float, of: figures.Figures) -> bytes:
    return b"".join(
        _summary(started + of.seconds, of.step, _value(tag, _scalar(value)))
        for tag, value in of.values.items()
    )


def text_event(wall_time: float, tag: str, text: str) -> bytes:
    return _summary(wall_time, 0, _value(tag, _text(text)))


# ---- Protocol Buffers


def _event(wall_time: float, step: int = 0) -> bytes:
    event = b"\x09" + struct.pack("<d", wall_time)  # Field 1, 64 bits.
    return event + b"\x10" + _varint(step) if step else event  # Field 2, varint.


def _summary(wall_time: float, step: int, value: bytes) -> bytes:
    # Field 5, in it field 1.
    return _record(_event(wall_time, step) + b"\x2a" + _sized(b"\x0a" + _sized(value)))


def _value(tag: str, content: bytes) -> bytes:
    return b"\x0a" + _sized(tag.encode()) + content


def _scalar(value: float) -> bytes:
    return b"\x15" + struct.pack("<f", _single(value))  # Field 2, 32 bits.


def _image(image: load.Image) -> bytes:
    content = b"\x08" + _varint(image.height) + b"\x10" + _varint(image.width)
    content += b"\x18" + _varint(image.channels) + b"\x22" + _sized(image.png)
    return b"\x22" + _sized(content)  # Field 4, sized.


def _text(text: str) -> bytes:
    # metadata = 9, in it plugin_data = 1, in it plugin_name = 1; tensor = 8, in it
    # dtype = 1 (DT_STRING is 7) and string_val = 8.
    plugin = _sized(b"\x0a" + _sized(b"\x0a" + _sized(b"text")))
    tensor = _sized(b"\x08\x07" + b"\x42" + _sized(text.encode()))
    return b"\x4a" + plugin + b"\x42" + tensor


def _single(value: float) -> float:
    """What has no place in 32 bits becomes infinite."""
    if math.isfinite(value) and abs(value) > 3.4028234e38:
        return math.copysign(math.inf, value)
    return value


def _sized(data: bytes) -> bytes:
    return _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ---- Records


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    return crc ^ 0xFFFFFFFF


def _crc_table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)  # Reflected 0x1EDC6F41.
        table.append(value)
    return table


_TABLE = _crc_table()
