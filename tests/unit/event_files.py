"""Reads the event files of TensorBoard, for tests of what writes them."""

import struct


def read_events(data):
    """As the format has it, by its own code: (wall time, step, (tag, value) or
    None, version) of each event. The value of an image is (height, width, channels,
    PNG), that of a text its bytes. Fails on a wrong checksum."""
    events = []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        for part, checksum in ((data[:8], data[8:12]), (body, data[12 + length : 16 + length])):
            crc = slow_crc32c(part)
            masked = (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF
            assert masked == struct.unpack("<I", checksum)[0], "wrong checksum"
        fields = read_fields(body)
        scalar = None
        if 5 in fields:
            value = read_fields(read_fields(fields[5])[1])
            if 4 in value:
                image = read_fields(value[4])
                scalar = (value[1], (image[1], image[2], image[3], image[4]))
            elif 8 in value:
                scalar = (value[1], read_fields(value[8])[8])
            else:
                scalar = (value[1], struct.unpack("<f", value[2])[0])
        events.append((struct.unpack("<d", fields[1])[0], fields.get(2, 0), scalar, fields.get(3)))
        data = data[16 + length :]
    return events


def read_fields(data):
    """The fields of a message; numbers of fixed size as bytes."""

    def varint(at):
        value = shift = 0
        while True:
            value |= (data[at] & 0x7F) << shift
            at, shift = at + 1, shift + 7
            if data[at - 1] < 0x80:
                return value, at

    fields, at = {}, 0
    while at < len(data):
        key, at = varint(at)
        if key & 7 == 0:
            fields[key >> 3], at = varint(at)
        else:
            size, at = {1: (8, at), 5: (4, at), 2: None}[key & 7] or varint(at)
            fields[key >> 3], at = data[at : at + size], at + size
    return fields


def slow_crc32c(data):
    """Bit by bit, to check the one with a table."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ 0x82F63B78 * (crc & 1)
    return crc ^ 0xFFFFFFFF
