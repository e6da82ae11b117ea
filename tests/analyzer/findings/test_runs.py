"""Runs of errors, and what answers are about, against plain Python: `analyzer/findings/runs.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from analyzer import tables
from analyzer.findings.runs import Thing, _about, _runs
from analyzer.protocol import names

ANSWERS = st.lists(
    st.tuples(st.sampled_from([3, 1 << 40]), st.sampled_from([0, 0, 3, 6]), st.integers(0, 5)), min_size=1, max_size=12
)
"""(key, error, when)"""


@given(ANSWERS, st.booleans())
def test_a_run_is_one_error_between_two_good_answers(answers: list[tuple[int, int, int]], sort: bool) -> None:
    if sort:
        answers = sorted(answers, key=lambda one: one[2])
    keys, codes, times = (np.array(column, np.int64) for column in zip(*answers, strict=True))
    seen: Any = SimpleNamespace(exchanges=SimpleNamespace(answered=times))
    found = _runs(seen, keys, codes.astype(np.int16), np.arange(len(answers), dtype=np.int32))
    assert [(key, code, rows.tolist(), cleared) for key, code, rows, cleared in found] == slowly(answers)


def slowly(answers: list[tuple[int, int, int]]) -> list[tuple[int, int, list[int], bool]]:
    found = []
    for key in sorted({key for key, _, _ in answers}):
        mine = sorted((at for at, one in enumerate(answers) if one[0] == key), key=lambda at: (answers[at][2], at))
        runs: dict[int, list[int]] = {}
        done: list[tuple[int, list[int]]] = []
        for row in mine:
            if answers[row][1] == 0:
                done += runs.items()
                runs = {}
            else:
                runs.setdefault(answers[row][1], []).append(row)
        good = [mine.index(row) for row in mine if answers[row][1] == 0]
        for code, rows in [*done, *runs.items()]:
            found.append((key, code, rows, bool(good) and good[-1] > mine.index(rows[-1])))
    return found


TEXTS = st.sampled_from([None, "", "a", "b"])
EXCHANGES = st.lists(
    st.tuples(TEXTS, TEXTS, st.none() | st.lists(st.sampled_from(["t", "u", ""]), max_size=3),
              st.sampled_from([names.METADATA, names.FETCH])), min_size=1, max_size=9,
)  # fmt: skip


@given(EXCHANGES, st.integers(0, 3))
def test_what_an_answer_is_about(rows: list[tuple[str | None, str | None, list[str] | None, int]], skip: int) -> None:
    columns = ("group_id", "transactional_id", "topics", "api_key")
    types = [tables.schema("exchanges").field(name).type for name in columns]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    arrays[0] = arrays[0].dictionary_encode()  # as files are read, or not
    part = pa.table(arrays, columns).slice(skip)
    numbers: dict[Thing, int] = {}
    found = [list(numbers)[number] for number in _about(part, numbers).tolist()] if len(part) else []
    assert found == [thing(*row) for row in rows[skip:]]


def thing(group: str | None, transaction: str | None, topics: list[str] | None, api: int) -> Thing:
    if api == names.METADATA and topics:
        return Thing(topic=" ".join(topics))
    return Thing(group, transaction, topics[0] if topics else None)
