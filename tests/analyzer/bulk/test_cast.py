"""Numbers for columns, by kernels and by what is plainly the same.

(proves: analyzer/bulk/cast.py)
"""

from __future__ import annotations

import numpy as np
import pytest

from kwire.analyzer.bulk import cast as f
from kwire.analyzer.bulk import state as s
from kwire.captures.kernels import NULL

LARGEST = (1 << 63) - 1


@pytest.fixture
def x() -> np.ndarray:
    """Rows of which some numbers are absent, some columns wholly or nowhere."""
    random = np.random.default_rng(7)
    rows = random.integers(-50, 50, (s.X_COLUMNS, 301))
    rows[random.random(rows.shape) < 0.3] = NULL
    rows[0], rows[1] = NULL, 7
    rows[[s.X_REQUEST_FIRST_NS, s.X_RESPONSE_LAST_NS]] *= random.integers(1, 10**6)
    rows[rows < -(1 << 62)] = NULL
    rows.flags.writeable = False
    return rows


def test_times(x: np.ndarray) -> None:
    out, backwards = np.empty((f.T_COLUMNS, 303), np.int64), np.zeros(303, np.bool_)
    odd = f.timed(x, out, backwards, 2)
    assert odd == backwards.sum() > 0
    for i, row in enumerate(x.T.tolist()):
        request, request_end, response, response_end, earlier = (
            None if row[column] == NULL else row[column] // 1000
            for column in (
                s.X_REQUEST_FIRST_NS,
                s.X_REQUEST_LAST_NS,
                s.X_RESPONSE_FIRST_NS,
                s.X_RESPONSE_LAST_NS,
                s.X_EARLIER_NS,
            )
        )
        latency = None if response is None or request_end is None else response - request_end
        assert backwards[i + 2] == (latency is not None and latency < 0)
        latency = None if latency is not None and latency < 0 else latency
        total = None if response_end is None or request is None else response_end - request
        total = None if total is not None and total < 0 else total
        queue = None
        if latency is not None and request_end is not None:
            queue = min(max(earlier - request_end, 0), latency) if earlier is not None else 0
        throttle = None if row[s.X_THROTTLE] == NULL else row[s.X_THROTTLE] * 1000
        low = high = None if row[s.X_BROKER_US] == NULL else row[s.X_BROKER_US]
        if high is None and None not in (latency, total) and NULL not in (row[s.X_NETWORK_US], row[s.X_MUTED_US]):
            assert queue is not None
            assert total is not None
            high = max(total - queue - row[s.X_MUTED_US] - row[s.X_NETWORK_US], 0)
            wait = row[s.X_MAX_WAIT] if row[s.X_MAX_WAIT] != NULL else row[s.X_TIMEOUT]
            low = max(high - 1000 * wait, 0) if wait > 0 else 0
        expected = [request, request_end, response, response_end, latency, total, queue, throttle, low, high]
        assert out[:, i + 2].tolist() == [NULL if value is None else value for value in expected]


def test_topic_partitions_have_what_their_exchanges_say(x: np.ndarray) -> None:
    random = np.random.default_rng(11)
    p = random.integers(0, 1000, (s.P_COLUMNS, 97))
    p[random.random(p.shape) < 0.3] = NULL
    x = np.where(x == NULL, NULL, abs(x) % 3)
    owner = np.sort(random.integers(0, x.shape[1], 97))
    x[s.X_API_KEY] = random.integers(0, 3, x.shape[1])
    for array in (p, x, owner):
        array.flags.writeable = False
    out = np.zeros((4, 99), np.int64)
    f.belong(p, x, owner, np.array([5, NULL, 6], np.int64), 1, out, 2)
    for i, of in enumerate(owner.tolist()):
        key, (following, offset, watermark) = x[s.X_API_KEY, of], p[[s.P_FOLLOWING, s.P_OFFSET, s.P_HIGH_WATERMARK], i]
        after = offset if following == NULL else following
        lag = watermark - after if key == 1 and NULL not in (watermark, after) else NULL
        kind = NULL if offset == NULL else (5, NULL, 6)[key]
        assert out[:, i + 2].tolist() == [x[s.X_EXCHANGE, of], x[s.X_REPLY, of], lag, kind]
    assert not out[:, :2].any()
