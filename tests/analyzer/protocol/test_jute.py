"""ZooKeeper's frames: cut anywhere, after holes, broken; nothing of a login stays."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kwire.analyzer.protocol.jute import MAX_FRAME, MAX_OPEN, Conversation, Spoken, looks_like
from tests.analyzer.zookeeper_traffic import (
    connect,
    connected,
    frame,
    get,
    login,
    make,
    ping,
    put,
    request_frame,
    text,
    together,
)

OFFSET = "/consumers/g/offsets/t/0"
ORIGIN = (7, 8)


def conversation() -> Conversation:
    return Conversation(lambda path: path.startswith("/consumers/"))


def spoken(*turns: tuple[bytes, bytes], of: Conversation | None = None, begin: bool = True) -> list[Spoken]:
    """Return the operations of a conversation of these requests and answers."""
    talk = of or conversation()
    operations = []
    for request, response in ([(connect(), connected())] if begin else []) + list(turns):
        assert talk.take(True, request, ORIGIN) == []
        operations += talk.take(False, response, ORIGIN)
    return operations


def test_operations_are_named_by_path_and_values_kept_where_they_are_wanted() -> None:
    assert spoken(
        ping(),
        get(1, OFFSET, b"41"),
        put(2, OFFSET, b"42"),
        make(3, OFFSET, b"0"),
        get(4, "/secret", b"value"),
        get(5, OFFSET, None),
        put(6, OFFSET, b"9", -101),
    ) == [
        Spoken("getData", OFFSET, b"41", 0, ORIGIN),
        Spoken("setData", OFFSET, b"42", 0, ORIGIN),
        Spoken("create", OFFSET, b"0", 0, ORIGIN),
        Spoken("getData", "/secret", None, 0, ORIGIN),
        Spoken("getData", OFFSET, None, -101, ORIGIN),
        Spoken("setData", OFFSET, b"9", -101, ORIGIN),
    ]


def test_parts_of_a_multi_are_operations_of_their_own() -> None:
    version = struct.pack(">i", -1)
    parts = (5, text(OFFSET) + text("42") + version), (2, text("/b") + version), (13, text("/c") + version)
    names = [(operation.operation, operation.path, operation.data) for operation in spoken(together(1, *parts))]
    assert names == [("setData", OFFSET, b"42"), ("delete", "/b", None), ("check", "/c", None)]


def test_nothing_of_logins_and_of_the_session_stays() -> None:
    talk = conversation()
    assert spoken(login(), get(1, OFFSET, b"1"), of=talk)[0].data == b"1"
    assert b"geheim" not in repr(talk._open).encode()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=40))
def test_bytes_may_be_cut_anywhere(cuts: list[int]) -> None:
    turns = [get(1, OFFSET, b"41"), ping(), put(2, OFFSET, b"42")]
    requests, answered_ = (b"".join(part) for part in zip((connect(), connected()), *turns, strict=True))
    talk, operations = conversation(), []
    for client, data in ((True, requests), (False, answered_)):
        rest, sizes = data, iter(cuts)
        while rest:
            size = next(sizes, len(rest))
            operations += talk.take(client, rest[:size], ORIGIN)
            rest = rest[size:]
    assert [(spoken.operation, spoken.data) for spoken in operations] == [("getData", b"41"), ("setData", b"42")]


def test_a_capture_that_begins_later_is_read_from_there() -> None:
    assert [operation.data for operation in spoken(put(9, OFFSET, b"5"), begin=False)] == [b"5"]


def test_after_a_hole_it_goes_on_with_the_next_frame() -> None:
    talk = conversation()
    spoken(put(1, OFFSET, b"1"), of=talk)
    talk.take(True, put(2, OFFSET, b"2")[0], ORIGIN)
    talk.lose(False)
    assert talk.take(False, b"\xff" * 20, ORIGIN) == []  # the rest of a frame
    assert [spoken.data for spoken in spoken(put(3, OFFSET, b"3"), of=talk, begin=False)] == [b"3"]
    talk.lose(True)
    assert [spoken.data for spoken in spoken(put(4, OFFSET, b"4"), of=talk, begin=False)] == [b"4"]


def test_answers_are_of_the_request_with_their_number() -> None:
    talk = conversation()
    for xid in (1, 2):
        talk.take(True, put(xid, OFFSET, b"%d" % xid)[0], ORIGIN)
    notified = frame(struct.pack(">iqiii", -1, -1, 0, 1, 3) + text("/a"))
    assert talk.take(False, notified, ORIGIN) == []
    assert talk.take(False, put(9, OFFSET, b"")[1], ORIGIN) == []  # of none that was seen
    assert [spoken.data for spoken in talk.take(False, put(2, OFFSET, b"")[1], ORIGIN)] == [b"2"]


@pytest.mark.parametrize(
    "data",
    [
        frame(b""),
        frame(b"\0\0"),
        request_frame(1, 5),
        request_frame(1, 5, struct.pack(">i", 1 << 30)),
        request_frame(1, 5, text("/a")),
        request_frame(1, 14, bytes(9) * 3),
        struct.pack(">i", -5),
        struct.pack(">i", MAX_FRAME + 1) + bytes(50),
        request_frame(1, 4, struct.pack(">i", 2) + b"\xff\xfe\0"),
        request_frame(1, 999, text("/a")),
    ],
)
def test_nonsense_says_nothing_and_breaks_nothing(data: bytes) -> None:
    talk = conversation()
    assert talk.take(True, data, ORIGIN) == []
    assert talk.take(False, data, ORIGIN) == []
    talk.lose(True)
    talk.lose(False)
    assert [spoken.data for spoken in spoken(put(3, OFFSET, b"3"), of=talk, begin=False)] == [b"3"]


def test_requests_without_answers_are_bounded() -> None:
    talk = conversation()
    for xid in range(MAX_OPEN + 10):
        talk.take(True, put(xid, OFFSET, b"1")[0], ORIGIN)
    assert len(talk._open) == MAX_OPEN


def test_a_connect_request_is_known_by_its_first_bytes() -> None:
    assert looks_like(connect())
    assert not looks_like(connected())
    assert not looks_like(connect()[:7])
