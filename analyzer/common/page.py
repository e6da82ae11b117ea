"""A page of HTML with everything in it, as of `kwire diff`: no script, nothing that is loaded from elsewhere.

In: text and tables. Out: HTML. Rule: whatever was captured is escaped, and made printable first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from kwire.analyzer.common.escapes import printable

STYLE: Final = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5c6775; --line: #d8dee6; --back: #fff; --bad: #b3261e;
  --good: #1b7f4b; --left: #4a78c2; --right: #d9822b; --card: #f6f8fa }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ee; --soft: #9aa5b1; --line: #333c47; --back: #14181d;
  --bad: #ff8a80; --good: #6fd19c; --left: #7ea6ea; --right: #f0a35a; --card: #1c2229 } }
body { margin: 0 auto; max-width: 72rem; padding: 1.5rem; font: 15px/1.5 system-ui, sans-serif;
  color: var(--ink); background: var(--back) }
h1 { font-size: 1.35rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.bad { color: var(--bad) } .good { color: var(--good) } .soft { color: var(--soft) }
article { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .7rem 1rem;
  margin: .7rem 0 }
table { border-collapse: collapse; width: 100%; display: block; overflow-x: auto }
th, td { text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); vertical-align: top }
td.n, th.n { text-align: right } pre { overflow-x: auto; font-size: 12px; margin: .3rem 0 }
.both { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem }
@media (max-width: 50rem) { .both { display: block } }
.left { fill: var(--left); color: var(--left) } .right { fill: var(--right); color: var(--right) }
svg { max-width: 100% }
"""


def document(title: str, parts: Iterable[str]) -> str:
    """Return the page. parts: HTML of its body."""
    body = "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{text(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n{body}\n</body></html>\n"
    )


def headline(command: str, verdict: str, is_bad: bool) -> str:
    """Return the heading: which command says what."""
    return f'<h1>{text(command)}: <span class="{"bad" if is_bad else "good"}">{text(verdict)}</span></h1>'


def text(value: object) -> str:
    """Return HTML that shows a value literally."""
    return escape(printable(str(value)))


def table(columns: Sequence[str], rows: Sequence[Sequence[object]], numbers: int = 0) -> str:
    """Return a table. numbers: so many columns, the last ones, are numbers."""
    first = len(columns) - numbers

    def line(cells: Sequence[object], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=n' if at >= first else ''}>{text(cell)}</{tag}>" for at, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{line(row, 'td')}</tr>" for row in rows)
    return f"<table><thead><tr>{line(columns, 'th')}</tr></thead><tbody>{body}</tbody></table>"
