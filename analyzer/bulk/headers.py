"""Headers of messages, and which layout their bodies have.

In: a frame's bytes. Out: API, version, correlation id, client id, where the body starts. Rules: ControlledShutdown v0
has no client id, header versions follow KIP-482; ApiVersions answered with UNSUPPORTED_VERSION (35) is in the layout
of v0, whatever was asked (KIP-511).
"""

from __future__ import annotations

from typing import Final

import numpy as np

from kwire.analyzer.bulk import state as s
from kwire.analyzer.protocol import api_keys, errors
from kwire.analyzer.protocol.decoding import (
    BAD_LENGTH,
    OK,
    SHORT,
    decode,
    read_int16,
    read_int32,
    read_varint,
)
from kwire.captures.kernels import Bytes, Flag, Int, inline

BAD_HEADER: Final = 64
"""A header that breaks a rule; beside the decoder's statuses."""


MAX_API: Final = 2048
MAX_VERSION: Final = 1024
"""Beyond these no API and no version is believed, not even where a frame is certain to start; Kafka is below 100."""


@inline
def parse_request_header(buffer: Bytes, at: Int, end: Int, lay: s.Layouts) -> tuple[Int, Int, Int, Int, Int, Int, Int]:
    """A request header at `at` -> (status, api_key, api_version, correlation_id, client id's place, its length, where
    the body starts). SHORT: [at, end) ends inside; what was read up to there is given. Length -1: null; -2: not read.
    Header versions: KIP-482; ControlledShutdown v0 has no client id."""
    if end - at < 8:
        return SHORT, np.int64(-1), np.int64(-1), np.int64(0), at, np.int64(-2), at
    api = read_int16(buffer, at)
    version = read_int16(buffer, at + 2)
    correlation = read_int32(buffer, at + 4)
    header = np.int64(1)
    if 0 <= api < lay.header_version.shape[1] and 0 <= version < lay.header_version.shape[2]:
        if lay.header_version[0, api, version] >= 0:
            header = np.int64(lay.header_version[0, api, version])
    at += 8
    if header == 0:
        return OK, api, version, correlation, at, np.int64(-2), at
    if end - at < 2:
        return SHORT, api, version, correlation, at, np.int64(-2), at
    length = read_int16(buffer, at)
    at += 2
    place = at
    if length < -1:
        return BAD_HEADER, api, version, correlation, place, np.int64(-2), at
    if length > end - at:
        return SHORT, api, version, correlation, place, np.int64(-2), at
    at += max(length, 0)
    if header >= 2:
        count, at = read_varint(buffer, at, end)
        if count < 0:
            return SHORT if count == -1 else BAD_HEADER, api, version, correlation, place, length, at
        for _ in range(count):
            tag, at = read_varint(buffer, at, end)
            size = np.int64(-1)
            if tag >= 0:
                size, at = read_varint(buffer, at, end)
            if tag < 0 or size < 0:
                return SHORT if tag == -1 or size == -1 else BAD_HEADER, api, version, correlation, place, length, at
            if size > end - at:
                return SHORT, api, version, correlation, place, length, at
            at += size
    return OK, api, version, correlation, place, length, at


@inline
def skip_response_tags(buffer: Bytes, at: Int, end: Int) -> tuple[Int, Int]:
    """The tag section of a response header v1 -> (status, where the body starts)."""
    count, at = read_varint(buffer, at, end)
    if count < 0:
        return SHORT if count == -1 else BAD_HEADER, at
    for _ in range(count):
        tag, at = read_varint(buffer, at, end)
        size = np.int64(-1)
        if tag >= 0:
            size, at = read_varint(buffer, at, end)
        if tag < 0 or size < 0 or size > end - at:
            return SHORT if tag != -2 and size != -2 else BAD_HEADER, at
        at += size
    return OK, at


@inline
def may_go_on(status: Int) -> Flag:
    """Whether the beginning of a message is valid so far.

    It must end inside a value, or inside an array whose elements would not fit into the bytes that are there."""
    return status == SHORT or status == BAD_LENGTH


@inline
def known_layout(lay: s.Layouts, direction: Int, api: Int, version: Int) -> Int:
    """Where the body's code starts; -1: unknown API, -2: unknown version of a known one."""
    if api < 0 or api >= lay.start.shape[1]:
        return np.int64(-1)
    if version < 0 or version >= lay.start.shape[2] or lay.start[direction, api, version] < 0:
        return np.int64(-2)
    return np.int64(lay.start[direction, api, version])


@inline
def near_known(lay: s.Layouts, api: Int, version: Int) -> Flag:
    """Whether these are a known API and a version that it has, or may soon have."""
    return 0 <= api < lay.max_version.shape[0] and 0 <= version <= lay.max_version[api] + 8


@inline
def is_believed(lay: s.Layouts, status: Int, api: Int, version: Int) -> Flag:
    """Whether a client's frame names an API, a version and a correlation id; `status`: of its header.

    A raw SASL token (KIP-43) whose handshake was not captured names none; in their place is part of a password."""
    if status == OK:
        return 0 <= api < MAX_API and 0 <= version < MAX_VERSION
    return near_known(lay, api, version)


@inline
def answered_version(buffer: Bytes, at: Int, end: Int, api: Int, version: Int) -> Int:
    """The version of the response whose body may start at `at`, to a request of this version (KIP-511)."""
    if api == api_keys.API_VERSIONS and version != 0 and end - at >= 2:
        if read_int16(buffer, at) == errors.UNSUPPORTED_VERSION:
            return np.int64(0)
    return np.int64(version)


@inline
def tagged_header(lay: s.Layouts, api: Int, version: Int) -> Flag:
    """Whether the response's header has tags (version 1). Its layout is known."""
    return lay.header_version[1, api, version] == 1


@inline
def decode_response(
    mt: s.Matching, lay: s.Layouts, buffer: Bytes, at: Int, end: Int, api: Int, version: Int
) -> tuple[Int, Int, Int]:
    """The part of a response after its correlation id -> (status, or below 0: no layout; where it ended; where its body
    starts)."""
    version = answered_version(buffer, at, end, api, version)
    pc = known_layout(lay, np.int64(1), api, version)
    if pc < 0:
        return pc, at, at
    if tagged_header(lay, api, version):
        status, at = skip_response_tags(buffer, at, end)
        if status != OK:
            return status, at, at
    body = at
    at, _, status, _ = decode(
        buffer, at, end, pc, lay.code, lay.tags, lay.tag_entries, lay.role, mt.tape, np.int64(0), np.int64(0), mt.stack
    )
    return status, at, body
