"""The program: every layout is in it, and what the kernel relies on holds for all of them."""

from __future__ import annotations

import numpy as np

from kwire.analyzer.protocol import program, schema
from kwire.analyzer.protocol.schema import REQUEST, RESPONSE


def test_it_has_all_736_layouts_and_nothing_else() -> None:
    loaded = program.load()
    assert (loaded.start >= 0).sum() == 736
    assert loaded.start.shape[:2] == (2, 95)
    for api_key, version, direction, layout in schema.layouts():
        assert loaded.start[direction, api_key, version] >= 0
        assert loaded.flexible[direction, api_key, version] == layout.flexible
        assert loaded.max_version[api_key] >= version
    assert (loaded.header_version >= 0).sum() == 736
    assert loaded.header_start.tolist()[REQUEST][0] >= 0
    assert (loaded.header_start >= 0).tolist() == [[True, True, True], [True, True, False]]


def test_every_jump_and_field_id_is_within_the_program() -> None:
    loaded = program.load()
    code = loaded.code
    assert (code[:, 1] >= 0).all()
    assert (code[:, 1] < loaded.n_fields).all()
    jumps = np.isin(code[:, 0], [program.ARRAY, program.COMPACT_ARRAY, program.STRUCT])
    assert (code[jumps, 2] > np.flatnonzero(jumps)).all()
    assert (code[jumps, 2] < len(code)).all()
    sections = np.flatnonzero(code[:, 0] == program.TAGS)
    assert (code[sections + 1, 0] == program.TAG_NEXT).all()
    assert (code[sections, 2] == code[sections + 1, 2]).all()
    assert (loaded.tag_entries[:, 1] < len(code)).all()
    assert loaded.tags.sum(axis=1).max() <= len(loaded.tag_entries)


def _least_size(item: schema.Field, flexible: bool) -> int:
    if item.kind == "struct":
        return 1 if item.nullable else _struct_size(item.fields, flexible)
    if item.kind in schema.FIXED_SIZE:
        return schema.FIXED_SIZE[item.kind]
    if item.flexible:
        return 1
    return 2 if item.kind == "string" else 4


def _struct_size(fields: tuple[schema.Field, ...], flexible: bool) -> int:
    return sum(_least_size(item, flexible) for item in fields if item.tag is None) + flexible


def _depth(fields: tuple[schema.Field, ...]) -> int:
    return max((_depth(item.fields) + (item.kind == "array") + (item.tag is not None) for item in fields), default=0)


def test_no_array_element_can_be_empty() -> None:
    """So `count <= bytes left` bounds the decoder's work, as `decoding` says."""

    def walk(fields: tuple[schema.Field, ...], flexible: bool) -> None:
        for item in fields:
            if item.kind == "array" and item.element == "struct":
                assert _struct_size(item.fields, flexible) >= 1, item.path
            walk(item.fields, flexible)

    for _, _, _, layout in schema.layouts():
        walk(layout.fields, layout.flexible)
    for _, _, layout in schema.data_layouts():
        walk(layout.fields, layout.flexible)


def test_no_layout_needs_half_of_the_stack() -> None:
    deepest = max(_depth(layout.fields) for _, _, _, layout in schema.layouts())
    assert 2 * (deepest + 1) <= program.STACK_DEPTH


def test_a_field_has_one_id_for_all_versions_and_a_path_in_kafkas_json_names() -> None:
    loaded = program.load()
    assert loaded.field_id(3, RESPONSE, "topics.partitions.errorCode") >= 0
    assert loaded.field_id(3, REQUEST, "topics.partitions.errorCode") == -1
    keys = [(info.api_key, info.direction, info.path) for info in loaded.fields]
    assert len(set(keys)) == len(keys)
    info = loaded.fields[loaded.field_id(0, REQUEST, "topicData.name")]
    assert (info.kind, info.entity_type, info.secret) == ("string", "topicName", "")
    assert loaded.fields[loaded.field_id(36, REQUEST, "authBytes")].secret == "always"
    elements = loaded.fields[loaded.field_id(42, REQUEST, "groupsNames[]")]
    assert (elements.kind, elements.entity_type) == ("string", "groupId")


def test_a_selection_has_the_fields_of_its_predicate() -> None:
    loaded = program.load()
    chosen = loaded.selection(lambda info: info.entity_type == "topicName" and info.direction == REQUEST)
    assert chosen.dtype == np.uint8
    assert chosen.sum() > 20
    for field in np.flatnonzero(chosen):
        assert loaded.fields[field].entity_type == "topicName"
    assert loaded.everything().all()


def test_building_it_twice_gives_the_same() -> None:
    first, second = program.build(), program.load()
    for name in ("code", "tags", "tag_entries", "start", "flexible", "header_version", "header_start", "max_version"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    assert first.fields == second.fields
    assert program.load() is second
