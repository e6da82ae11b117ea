"""Runs of errors, and what answers are about, against plain Python: `analyzer/findings/runs.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kwire.analyzer.dataset import tables
from kwire.analyzer.findings import runs
from kwire.analyzer.findings.runs import Run, Thing, _about
from kwire.analyzer.protocol import api_keys

TIMES = st.integers(0, 5).map(lambda at: at * 4_000_000)
ANSWERS = st.lists(
    st.tuples(st.sampled_from([3, 1 << 40]), st.sampled_from([0, 0, 3, 6]), TIMES), min_size=1, max_size=12
)
"""(key, error, when)"""


@given(ANSWERS, st.booleans(), st.booleans())
def test_a_run_is_one_error_between_two_good_answers(
    answers: list[tuple[int, int, int]], sort: bool, all_of_them: bool
) -> None:
    if sort:
        answers = sorted(answers, key=lambda answer: answer[2])
    keys, codes, times = (np.array(column, np.int64) for column in zip(*answers, strict=True))
    seen: Any = SimpleNamespace(exchanges=SimpleNamespace(response_end=times))
    every = [lambda api, code: all_of_them or (api == 0 and code == 6)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "EVERY", every)
        results = [*runs._runs(seen, keys, 40, codes.astype(np.int16), np.arange(len(answers), dtype=np.int32))]
    expected = [
        (key, code, rows, cleared)
        for key, code, rows, cleared in slowly(answers)
        if all_of_them or (key < 1 << 40 and code == 6) or lasts(key >> 40, code, [answers[row][2] for row in rows])
    ]
    assert [(key, code, rows.tolist(), cleared) for key, code, rows, cleared in results] == expected


def lasts(api: int, code: int, times: list[int]) -> bool:
    """As many answers, and as long, as a run of that error needs to be a fault."""
    run = Run(0, api, code, Thing(), np.arange(len(times)), min(times), max(times), False)
    return run.lasting


def slowly(answers: list[tuple[int, int, int]]) -> list[tuple[int, int, list[int], bool]]:
    expected = []
    for key in sorted({key for key, _, _ in answers}):
        own = sorted((at for at, answer in enumerate(answers) if answer[0] == key), key=lambda at: (answers[at][2], at))
        runs: dict[int, list[int]] = {}
        done: list[tuple[int, list[int]]] = []
        for row in own:
            if answers[row][1] == 0:
                done += runs.items()
                runs = {}
            else:
                runs.setdefault(answers[row][1], []).append(row)
        good = [own.index(row) for row in own if answers[row][1] == 0]
        for code, rows in [*done, *runs.items()]:
            expected.append((key, code, rows, bool(good) and good[-1] > own.index(rows[-1])))
    return expected


TEXTS = st.sampled_from([None, "", "a", "b"])
EXCHANGES = st.lists(
    st.tuples(
        TEXTS,
        TEXTS,
        st.none() | st.lists(st.sampled_from(["t", "u", ""]), max_size=3),
        st.sampled_from([api_keys.METADATA, api_keys.FETCH]),
    ),
    min_size=1,
    max_size=9,
)


@given(EXCHANGES, st.integers(0, 3))
def test_what_an_answer_is_about(rows: list[tuple[str | None, str | None, list[str] | None, int]], skip: int) -> None:
    columns = ("group_id", "transactional_id", "topics", "api_key")
    types = [tables.schema("exchanges").field(name).type for name in columns]
    arrays = [pa.array(column, kind) for column, kind in zip(zip(*rows, strict=True), types, strict=True)]
    arrays[0] = arrays[0].dictionary_encode()  # as files are read, or not
    part = pa.table(arrays, columns).slice(skip)
    numbers: dict[Thing, int] = {}
    several = set[int]()
    wrong = np.array([place % 2 == 0 for place in range(len(part))], bool)
    subjects = [list(numbers)[number] for number in _about(part, wrong, numbers, several).tolist()] if len(part) else []
    assert subjects == [thing(*row) for row in rows[skip:]]
    more = [
        subject
        for subject, row in zip(subjects[::2], rows[skip::2], strict=True)
        if row[3] != api_keys.METADATA and len(row[2] or ()) > 1
    ]
    assert several == {numbers[subject] for subject in more}


def thing(group: str | None, transaction: str | None, topics: list[str] | None, api: int) -> Thing:
    if api == api_keys.METADATA and topics:
        return Thing(topic=" ".join(topics), topics=tuple(topics) if len(topics) > 1 else ())
    return Thing(group, transaction, topics[0] if topics else None)
