"""Fields of many messages at once: the same values as in the trees of the messages, over all layouts.

(proves: analyzer/protocol/project.py)
"""

from __future__ import annotations

import base64
import itertools
import struct
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from kwire.analyzer.protocol import decoding, encoding, layouts, program, project, schema, tree
from kwire.analyzer.protocol.encoding import encode_request
from kwire.analyzer.protocol.project import Frame, Messages, Projection
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE, Field
from tests.analyzer.protocol import golden

METADATA, VERSION = 3, 9
APIS = [(api.api_key, direction) for api in schema.apis() for direction in (REQUEST, RESPONSE)]


def metadata(topics: int) -> bytes:
    return encode_request(METADATA, VERSION, topics, "client", {"topics": [{"name": f"t{i}"} for i in range(topics)]})


def framed(message: golden.Golden) -> Frame:
    """A golden message with its header before it."""
    version = int(program.load().header_version[message.direction, message.api_key, message.version])
    name = "RequestHeader" if message.direction == REQUEST else "ResponseHeader"
    header: dict[str, Any] = {"correlationId": 7}
    if message.direction == REQUEST:
        header |= {"requestApiKey": message.api_key, "requestApiVersion": message.version}
        header |= {"clientId": "c"} if version else {}
    data = encoding.encode_data(header, name, version) + message.data
    return data, message.api_key, message.version, message.direction


def decoded(frame: Frame) -> tree.Decoded:
    """By the tree, one by one."""
    data, api_key, version, direction = frame
    size = len(framed(golden.Golden("", api_key, direction, version, b"", ""))[0])
    return tree.decode_message(data[:], api_key, version, direction, start=size, exact=True)


# --- all layouts ------------------------------------------------------------------------------------------------------


def paths_of(fields: Sequence[Field], arrays: tuple[str, ...] = ()) -> Iterator[str]:
    """Every field below some structs, as `project` wants it."""
    for field in fields:
        path = "".join((*arrays, field.path.removeprefix("".join(arrays).replace("[]", ""))))
        if field.kind == "struct":
            yield from paths_of(field.fields, arrays)
            if field.nullable:
                yield path
        else:
            yield path
        if field.kind == "array":
            yield path + "[]"
            inside = path.removeprefix("".join(arrays)) + "[]"
            yield from paths_of(field.fields, (*arrays, inside))


def value_of(column: project.FieldColumn, row: int, kind: str, buffer: np.ndarray) -> Any:
    """A cell as a body has it."""
    value, position, length = int(column.value[row]), int(column.position[row]), int(column.length[row])
    if kind in ("string", "bytes", "records"):
        content = buffer[position : position + max(length, 0)].tobytes()
        assert value == length
        if length < 0:
            return None
        return content.decode("utf-8", "surrogateescape") if kind == "string" else content
    if kind == "uuid":
        return base64.urlsafe_b64encode(buffer[position : position + 16].tobytes())[:22].decode()
    if kind == "float64":
        return struct.unpack(">d", struct.pack(">q", value))[0]
    return bool(value) if kind == "bool" else value


class Rebuilt:
    """Bodies put together again from a projection."""

    def __init__(self, projection: Projection, buffer: np.ndarray) -> None:
        self.projection = projection
        self.buffer = buffer
        self.rows: dict[str, dict[int, list[int]]] = {}
        for path, elements in projection.elements.items():
            rows = self.rows.setdefault(path, {})
            for row, parent in enumerate(elements.parent.tolist()):
                rows.setdefault(parent, []).append(row)

    def struct(self, fields: Sequence[Field], row: int, arrays: str = "") -> dict[str, Any]:
        body: dict[str, Any] = {}
        for field in fields:
            path = arrays + field.path.removeprefix(arrays.replace("[]", ""))
            if field.kind == "struct":
                if field.nullable and self.projection.column(path).value[row] < 0:
                    body[field.name] = None
                    continue
                inner: Any = self.struct(field.fields, row, arrays)
                if field.tag is None or inner:
                    body[field.name] = inner
                continue
            column = self.projection.column(path)
            if not column.present[row]:
                continue  # tagged, or in a struct that is
            if field.kind != "array":
                body[field.name] = value_of(column, row, field.kind, self.buffer)
                continue
            inside = path + "[]"
            rows = self.rows[inside].get(row, [])
            assert len(rows) == max(int(column.value[row]), 0)
            body[field.name] = None if column.value[row] < 0 else [self.element(field, at, inside) for at in rows]
        return body

    def element(self, field: Field, row: int, path: str) -> Any:
        if field.element == "struct":
            return self.struct(field.fields, row, path)
        return value_of(self.projection.column(path), row, field.element or "", self.buffer)


@pytest.mark.parametrize(("api_key", "direction"), APIS)
def test_columns_have_the_values_of_the_tree(api_key: int, direction: int) -> None:
    """Every message that Kafka's own code wrote, in all versions at once: whole, and with bytes behind."""
    whole = [
        framed(message) for message in golden.every() if (message.api_key, message.direction) == (api_key, direction)
    ]
    frames = [*whole, *((data + b"\0more", key, version, way) for data, key, version, way in whole)]
    messages = Messages.from_frames(frames)
    versions = sorted({version for _, _, version, _ in whole})
    all_layouts = {version: schema.layout(api_key, version, direction) for version in versions}
    paths = {path for layout in all_layouts.values() if layout for path in paths_of(layout.fields)}
    projection = project.project(messages, api_key, direction, sorted(paths))
    rebuilt = Rebuilt(projection, messages.buffer)
    assert projection.decoded.all()
    assert (messages.end - projection.ended == np.repeat((0, 5), len(whole))).all()
    for number, (_, _, version, _) in enumerate(frames):
        layout = all_layouts[version]
        assert layout is not None
        expected = without_tags(decoded(whole[number % len(whole)]).body)
        assert without_empty(rebuilt.struct(layout.fields, number)) == without_empty(expected), (version, number)


def without_tags(value: Any) -> Any:
    """A body without tagged fields that nobody knows."""
    if isinstance(value, dict):
        return {name: without_tags(inner) for name, inner in value.items() if name != tree.UNKNOWN_TAGS}
    return [without_tags(inner) for inner in value] if isinstance(value, list) else value


def without_empty(value: Any) -> Any:
    """A body without empty structs: a projection cannot tell them from absent ones."""
    if isinstance(value, dict):
        inner = {name: without_empty(field) for name, field in value.items()}
        return {name: field for name, field in inner.items() if field != {}}
    return [without_empty(field) for field in value] if isinstance(value, list) else value


@pytest.mark.parametrize(("api_key", "direction"), APIS)
def test_what_is_cut_short_is_decoded_where_the_tree_decodes_it(api_key: int, direction: int) -> None:
    """One message of each version, cut at every place."""
    by_version = {
        message.version: framed(message)
        for message in golden.every()
        if (message.api_key, message.direction) == (api_key, direction)
    }
    frames = [
        (data[:cut], key, version, way) for data, key, version, way in by_version.values() for cut in range(len(data))
    ]
    messages = Messages.from_frames(frames)
    rows = project.decode_rows(messages, program.load().everything())
    for number, (data, _, version, _) in enumerate(frames):
        if direction == REQUEST:
            alone = tree.decode_request(data) if len(data) >= 8 else None
        else:  # answers to ApiVersions may be of another version
            alone = tree.decode_response(data, api_key, version) if api_key != schema.API_VERSIONS else None
        if alone is not None:
            assert bool(rows.decoded[number]) == (alone.status == decoding.OK), (data, version)
    assert set(rows.message.tolist()) <= set(np.flatnonzero(rows.decoded).tolist())


# --- rows -------------------------------------------------------------------------------------------------------------


def one_by_one(data: bytes) -> tuple[list[list[int]], int, int]:
    """The rows of header and body, where it ended and how."""
    loaded = program.load()
    rows: list[list[int]] = []
    at, status = 0, decoding.OK
    for pc in (int(loaded.header_start[REQUEST, 2]), int(loaded.start[REQUEST, METADATA, VERSION])):
        if status == decoding.OK:
            tape, at, status, _ = layouts.run(data, at, loaded, pc, layouts.MAX_ROWS)
            rows += tape[:, 1:].tolist()
    return rows, at, status


@pytest.mark.parametrize("room", [1, 8, 4096])
def test_the_same_rows_as_one_by_one(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, cut anywhere, with bytes behind; on a tape that has to grow, and to be begun again."""
    monkeypatch.setattr(project, "_ROWS", room)
    first = metadata(3)
    datas = [metadata(i % 40) for i in range(60)] + [first[:cut] for cut in range(4, len(first))] + [first + b"more"]
    messages = Messages.from_frames([(data, METADATA, VERSION, REQUEST) for data in datas])
    rows: dict[int, list[list[int]]] = {}
    for tape, endings in project.decode_blocks(messages, program.load().everything()):
        last = endings
        for number, *row in tape.tolist():
            row[2] -= int(messages.begin[number])
            rows.setdefault(number, []).append(row)
    for i, data in enumerate(datas):
        expected, at, status = one_by_one(data)
        assert rows.get(i, []) == expected, data
        assert last[i].tolist() == [at + messages.begin[i], status]


def test_a_message_with_too_many_fields_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_ROWS", 8)
    monkeypatch.setattr(project, "_MOST_ROWS", 8)
    messages = Messages.from_frames([(metadata(count), METADATA, VERSION, REQUEST) for count in (1, 50, 1)])
    selected = program.load().selection(lambda info: info.kind == "string")
    rows = project.decode_rows(messages, selected)
    assert sorted(set(rows.message.tolist())) == [0, 2]
    assert rows.decoded.tolist() == [True, False, True]


def test_what_comes_after_too_many_rows_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project, "_ROWS", 64)
    messages = Messages.from_frames([(metadata(count), METADATA, VERSION, REQUEST) for count in (5, 5, 5, 5)])
    rows = project.decode_rows(messages, program.load().everything(), max_rows=20)
    assert rows.decoded.any()
    assert not rows.decoded[-1]
    assert set(rows.message.tolist()) == set(np.flatnonzero(rows.decoded).tolist())


# --- columns ----------------------------------------------------------------------------------------------------------


def produce(version: int, topics: dict[str, list[int]]) -> Frame:
    by_id = version >= 13
    names = [
        {"topicId": base64.urlsafe_b64encode(name.ljust(16).encode())[:22].decode()} if by_id else {"name": name}
        for name in topics
    ]
    body = {
        "transactionalId": None,
        "acks": 1,
        "timeoutMs": 5,
        "topicData": [
            {**name, "partitionData": [{"index": index, "records": bytes([index])} for index in indexes]}
            for name, indexes in zip(names, topics.values(), strict=True)
        ],
    }
    return encode_request(0, version, 1, "c", body), 0, version, REQUEST


NAME, ID, INDEX = "topicData[].name", "topicData[].topicId", "topicData[].partitionData[].index"
RECORDS = "topicData[].partitionData[].records"
PARTITIONS = "topicData[].partitionData[]"


def test_elements_know_their_outer_element_and_columns_are_aligned_with_them() -> None:
    frames = [produce(7, {"a": [1, 2], "b": []}), produce(13, {"c": [3]}), produce(9, {"d": [4, 5], "e": [6]})]
    messages = Messages.from_frames(frames)
    projection = project.project(messages, 0, REQUEST, [NAME, ID, INDEX, RECORDS, "acks"])
    assert projection.column("acks").value.tolist() == [1, 1, 1]
    assert projection.elements["topicData[]"].message.tolist() == [0, 0, 1, 2, 2]
    assert projection.elements[PARTITIONS].parent.tolist() == [0, 0, 2, 3, 3, 4]
    assert projection.elements[PARTITIONS].message.tolist() == [0, 0, 1, 2, 2, 2]
    assert projection.column(INDEX).value.tolist() == [1, 2, 3, 4, 5, 6]
    assert projection.column(NAME).length.tolist() == [1, 1, -1, 1, 1]
    assert projection.column(NAME).present.tolist() == [True, True, False, True, True]
    assert projection.column(NAME).filled(-7).tolist() == [1, 1, -7, 1, 1]
    topics = projection.column(NAME).otherwise(projection.column(ID))
    assert messages.buffer[topics.position].tobytes() == b"abcde"
    below = projection.column(NAME, below=PARTITIONS).otherwise(projection.column(ID, below=PARTITIONS))
    assert messages.buffer[below.position].tobytes() == b"aacdde"
    assert messages.buffer[projection.column(RECORDS).position].tolist() == [1, 2, 3, 4, 5, 6]
    assert projection.column("acks", below=PARTITIONS).value.tolist() == [1] * 6


def test_only_wanted_messages_of_the_api_are_decoded() -> None:
    other = (metadata(1), METADATA, VERSION, REQUEST)
    lies = (metadata(1), 0, 7, REQUEST)
    frames = [produce(7, {"a": [1]}), other, lies, produce(7, {"b": [2]}), produce(7, {"c": [3]})]
    wanted = np.array([True, True, True, False, True])
    projection = project.project(Messages.from_frames(frames), 0, REQUEST, [INDEX], wanted)
    assert projection.decoded.tolist() == [True, False, False, False, True]
    assert projection.elements[PARTITIONS].message.tolist() == [0, 4]
    assert projection.column(INDEX).value.tolist() == [1, 3]
    nothing = project.project(Messages.from_frames([]), 0, REQUEST, [INDEX])
    assert not len(nothing.column(INDEX).value)


@pytest.mark.parametrize("path", ["topicData[].nam", "topics[].name", "topicData[].name[]"])
def test_a_field_that_no_version_has_is_an_error(path: str) -> None:
    with pytest.raises(KeyError, match="Produce has no"):
        project.project(Messages.from_frames([]), 0, REQUEST, [path])


def test_primitive_elements_are_rows() -> None:
    bodies: list[dict[str, Any]] = [{"groupsNames": ["a", "bc"]}, {"groupsNames": []}, {"groupsNames": ["d"]}]
    frames = [(encode_request(42, 2, 1, "c", body), 42, 2, REQUEST) for body in bodies]
    projection = project.project(Messages.from_frames(frames), 42, REQUEST, ["groupsNames[]", "groupsNames"])
    assert projection.column("groupsNames").value.tolist() == [2, 0, 1]
    assert projection.elements["groupsNames[]"].parent.tolist() == [0, 0, 2]
    assert projection.column("groupsNames[]").length.tolist() == [1, 2, 1]


def test_every_field_of_every_layout_can_be_asked_for() -> None:
    for api_key, version, direction, layout in itertools.islice(schema.layouts(), 0, None, 3):
        for path in paths_of(layout.fields):
            project.project(Messages.from_frames([]), api_key, direction, [path])
        assert version >= 0
