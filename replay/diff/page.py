"""A comparison as one page of HTML, in the style of `kwire report`: verdict, causes with what follows from them,
records that were acknowledged, latencies side by side, each with its evidence.

In: a `Comparison`, and its pairs for the bodies of examples. Out: HTML with everything in it: no script, nothing that
is loaded from elsewhere. Rules: whatever was captured is escaped; a page shows so much of a body and no more, records
as their size; secrets are overwritten in a RUN already.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from kwire.analyzer.common import page
from kwire.replay.diff import noise
from kwire.replay.diff.audit_results import OF_TRANSACTIONS, Audited
from kwire.replay.diff.compare import Comparison
from kwire.replay.diff.differences import RULES, Difference, Grouped, grouped
from kwire.replay.diff.pairs import Pair, Side
from kwire.replay.diff.text import consequence_text, group_title, quantiles, summary_lines, verdict

_MOST: Final = 4_000
"""Characters of a body that a page shows."""
_ROWS: Final = 200
"""Partitions that are listed."""
_BARS: Final = 24
_WIDTH, _HEIGHT = 360, 64


def as_html(comparison: Comparison, sides: tuple[str, str], pairs: Sequence[Pair]) -> str:
    """The page."""
    unexpected = [group for group in grouped(comparison.differences) if group.unexpected]
    heading = page.headline("kwire diff", verdict(comparison, unexpected), bool(unexpected))
    return page.document("kwire diff", [heading, *body(comparison, sides, pairs)])


def body(comparison: Comparison, sides: tuple[str, str], pairs: Sequence[Pair]) -> list[str]:
    """Everything below the heading: causes, records, latencies, what a rule explains."""
    groups = grouped(comparison.differences)
    unexpected = [group for group in groups if group.unexpected]
    expected = [group for group in groups if not group.unexpected and group.examples[0].cause is None]
    parts = ["".join(f'<p class="soft">{page.text(line)}</p>' for line in summary_lines(comparison, sides))]
    if unexpected:
        parts += [
            "<h2>What differs, and what follows from it</h2>",
            *(_cause(group, sides, pairs) for group in unexpected),
        ]
    if comparison.audit is not None:
        parts += ["<h2>Records that the target acknowledged</h2>", _audit(comparison.audit)]
    parts += ["<h2>Latency</h2>", *_latencies(comparison, sides)]
    if expected:
        parts += ["<h2>Differences that a rule explains</h2>", _expected(expected)]
    return parts


# --- causes ---


def _cause(group: Grouped, sides: tuple[str, str], pairs: Sequence[Pair]) -> str:
    follows = "".join(f"<li>{page.text(consequence_text(consequence))}</li>" for consequence in group.consequences)
    rows = [
        (
            example.row["request_file"],
            example.row["request_packet"],
            example.row["connection"],
            example.row["correlation_id"],
            "/".join(example.key),
            example.left,
            example.right,
        )
        for example in group.examples
    ]
    columns = ("file", "packet", "connection", "id", "about", *sides)
    parts = [f"<article><h3>{page.text(group_title(group))}</h3>"]
    if follows:
        parts.append(f"<p>From which follow</p><ul>{follows}</ul>")
    parts.append(page.table(columns, rows))
    parts += _bodies(group.examples[0], sides, pairs)
    return "".join(parts) + "</article>"


def _bodies(example: Difference, sides: tuple[str, str], pairs: Sequence[Pair]) -> Iterator[str]:
    """Both sides of the first example: what was asked, and what was answered."""
    place = example.row.get("place")
    if place is None or not 0 <= place < len(pairs):
        return
    pair = pairs[place]
    bodies: tuple[tuple[str, Callable[[Side], Any]], ...] = (
        ("request", lambda side: side.request_body()),
        ("answer", lambda side: getattr(side.decoded_answer(pair.api_key), "body", None)),
    )
    yield "<details><summary>the first of them, both sides</summary>"
    for what, body in bodies:
        yield f'<h4>{what}</h4><div class="both">'
        for name, side, colour in zip(sides, (pair.left, pair.right), ("left", "right"), strict=True):
            yield f'<div><b class="{colour}">{page.text(name)}</b><pre>{_shown(body(side))}</pre></div>'
        yield "</div>"
    yield "</details>"


def _shown(body: Any) -> str:
    if body is None:
        return "none"
    text = json.dumps(_without_bytes(body), indent=1, ensure_ascii=False)
    shown = text if len(text) <= _MOST else f"{text[:_MOST]}\n... {len(text) - _MOST:,} characters more"
    return "\n".join(map(page.text, shown.split("\n")))


def _without_bytes(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_bytes(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_without_bytes(inner) for inner in value]
    return f"{len(value)} bytes" if isinstance(value, bytes | bytearray | memoryview) else value


def _expected(groups: Sequence[Grouped]) -> str:
    rows = [(group_title(group), group.rule or "", RULES[group.rule or ""]) for group in groups]
    return page.table(("difference", "rule", "because"), rows)


# --- records ---


def _audit(audit: Audited) -> str:
    worst = sorted(audit.after.items(), key=lambda each: (-_wrong(each[1]), each[0]))
    columns = ("acknowledged", "readable", "missing", "out_of_order", "stored_otherwise", *OF_TRANSACTIONS)
    rows = [
        (*where, row.get("stored_as") or "", *(_cell(row, name) for name in columns)) for where, row in worst[:_ROWS]
    ]
    named = (name.replace("_", " ") for name in columns)
    headings = ("topic", "partition", "stored as, where otherwise than sent", *named)
    more = f'<p class="soft">and {len(worst) - _ROWS:,} partitions more</p>' if len(worst) > _ROWS else ""
    return page.table(headings, rows, len(columns)) + more


def _wrong(row: Any) -> int:
    columns = ("missing", "out_of_order", "stored_otherwise", *OF_TRANSACTIONS)
    return sum(row.get(name) or 0 for name in columns) + (row["readable"] is None)


def _cell(row: Any, name: str) -> Any:
    """A count; of transactions there may be none."""
    if row.get(name) is not None:
        return row[name]
    return "no transaction" if name in OF_TRANSACTIONS and row["readable"] is not None else "not read"


# --- latencies ---


def _latencies(comparison: Comparison, sides: tuple[str, str]) -> Iterator[str]:
    both = {api: values for api, values in sorted(comparison.latencies.items()) if all(values)}
    if not both:
        yield '<p class="soft">No API was answered on both sides.</p>'
    for api, (left, right) in both.items():
        slower = ' <span class="bad">slower beyond noise</span>' if api in comparison.slower else ""
        rows = [
            (name, *(f"{quantiles(values)[at] / 1000:.2f}" for at in ("p50", "p95", "p99", "max")), len(values))
            for name, values in zip(sides, (left, right), strict=True)
        ]
        quantile_table = page.table(("ms", "p50", "p95", "p99", "max", "answers"), rows, 5)
        chart = _histogram(left, right)
        shifts = "".join(f'<p class="soft">{page.text(line.strip())}</p>' for line in noise.lines(_of(comparison, api)))
        figures = f'<div class="both">{quantile_table}{chart}</div>{shifts}'
        yield f"<article><h3>{page.text(api)}{slower}</h3>{figures}</article>"
    if both and not comparison.judged:
        yield '<p class="soft">Not judged: the sides were sent at different speeds.</p>'


def _of(comparison: Comparison, api: str) -> dict[str, Sequence[noise.Shift]]:
    """The shifts of an API, and of it at each of several brokers."""
    return {name: some for name, some in comparison.measured.shifts.items() if name.partition(" at ")[0] == api}


def _histogram(left: Sequence[int], right: Sequence[int]) -> str:
    """Both distributions over one logarithmic axis, each by its own total."""
    logs = [[math.log10(max(value, 1)) for value in values] for values in (left, right)]
    low, high = min(map(min, logs)), max(map(max, logs))
    step = (high - low) / _BARS or 1.0
    shares = []
    for values in logs:
        counts = [0] * _BARS
        for value in values:
            counts[min(int((value - low) / step), _BARS - 1)] += 1
        shares.append([count / len(values) for count in counts])
    top = max(map(max, shares))
    wide = _WIDTH / _BARS / 2
    bars = "".join(
        f'<rect class="{name}" x="{(2 * at + beside) * wide:.1f}" y="{_HEIGHT * (1 - share / top):.1f}" '
        f'width="{wide * 0.9:.1f}" height="{_HEIGHT * share / top:.1f}"/>'
        for beside, (name, some) in enumerate(zip(("left", "right"), shares, strict=True))
        for at, share in enumerate(some)
        if share
    )
    label = f"from {10**low / 1000:.2f} to {10**high / 1000:.2f} ms, logarithmic"
    return (
        f'<figure><svg role="img" aria-label="{label}" viewBox="0 0 {_WIDTH} {_HEIGHT}">{bars}</svg>'
        f'<figcaption class="soft">{label}</figcaption></figure>'
    )
