"""Many messages in one call: the same rows and endings as one by one.

(proves: analyzer/protocol/many.py)
"""

from __future__ import annotations

import numpy as np
import pytest

from analyzer.protocol import decoding, layouts, many, program
from analyzer.protocol.encoding import encode_request
from analyzer.protocol.schema import REQUEST

METADATA, VERSION = 3, 9


def message(topics: int) -> bytes:
    return encode_request(METADATA, VERSION, topics, "client", {"topics": [{"name": f"t{i}"} for i in range(topics)]})


def one_by_one(data: bytes) -> tuple[list[list[int]], int, int]:
    """The rows of header and body, where it ended and how."""
    loaded = program.load()
    found: list[list[int]] = []
    at, status = 0, decoding.OK
    for pc in (int(loaded.header_start[REQUEST, 2]), int(loaded.start[REQUEST, METADATA, VERSION])):
        if status == decoding.OK:
            tape, at, status, _ = layouts.run(data, at, loaded, pc, layouts.MAX_ROWS)
            found += tape[:, 1:].tolist()
    return found, at, status


@pytest.mark.parametrize("room", [1, 8, 4096])
def test_the_same_as_one_by_one(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, cut anywhere, with bytes behind; on a tape that has to grow, and to be begun again."""
    monkeypatch.setattr(many, "_ROWS", room)
    loaded = program.load()
    first = message(3)
    datas = [message(i % 40) for i in range(60)] + [first[:cut] for cut in range(len(first))] + [first + b"more"]
    ends = np.cumsum([len(data) for data in datas])
    places = np.zeros((len(datas), many.PLACE_COLUMNS), np.int64)
    places[:, many.END] = ends
    places[1:, many.AT] = ends[:-1]
    places[:, many.HEADER] = loaded.header_start[REQUEST, 2]
    places[:, many.BODY] = loaded.start[REQUEST, METADATA, VERSION]
    rows: dict[int, list[list[int]]] = {}
    for tape, found in many.decode_all(layouts.as_buffer(b"".join(datas)), places, loaded.everything(), loaded):
        endings = found
        for number, *row in tape.tolist():
            row[2] -= int(places[number, many.AT])
            rows.setdefault(number, []).append(row)
    for i, data in enumerate(datas):
        expected, at, status = one_by_one(data)
        assert rows.get(i, []) == expected, data
        assert endings[i].tolist() == [at + places[i, many.AT], status]


def test_a_message_with_too_many_fields_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(many, "_ROWS", 8)
    monkeypatch.setattr(many, "_MOST_ROWS", 8)
    loaded = program.load()
    datas = [message(1), message(50), message(1)]
    ends = np.cumsum([len(data) for data in datas])
    starts = [int(loaded.header_start[REQUEST, 2]), int(loaded.start[REQUEST, METADATA, VERSION])]
    places = np.array([[end - len(data), end, *starts] for data, end in zip(datas, ends, strict=True)], np.int64)
    selected = loaded.selection(lambda info: info.kind == "string")
    told: list[int] = []
    for tape, found in many.decode_all(layouts.as_buffer(b"".join(datas)), places, selected, loaded):
        told += tape[:, 0].tolist()
        endings = found
    assert sorted(set(told)) == [0, 2]
    assert endings[:, many.STATUS].tolist() == [decoding.OK, decoding.FULL, decoding.OK]
