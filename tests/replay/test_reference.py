"""The tables of APIs, rules and options in docs/reference/replay.md are those of the code.

Proves: replay/plan/apis.py, and the tables of docs/reference/replay.md
"""

from __future__ import annotations

import ast
import re

from kwire.analyzer.options.declare import declarations
from kwire.analyzer.options.replay import ReplayOptions
from kwire.analyzer.protocol import api_keys as names
from kwire.analyzer.protocol import schema
from kwire.replay.plan import apis, steps
from tests.shared import ROOT

TEXT = (ROOT / "docs" / "reference" / "replay.md").read_text()


def test_every_rule_is_explained_in_the_same_words() -> None:
    explained = dict(re.findall(r"^\| `([a-z_0-9]+)` \| (.+) \|$", TEXT, re.MULTILINE))
    assert {name: explained.get(name) for name in steps.RULES} == steps.RULES


def test_every_api_has_a_policy() -> None:
    assert sorted(apis.APIS) == [api.api_key for api in schema.apis()]


def test_the_table_of_apis_is_the_codes() -> None:
    documented = {
        policy: set(names.split(", "))
        for policy, names in re.findall(r"^\| (sent.*|only with `--allow`) \| ([A-Za-z, ]+) \|$", TEXT, re.MULTILINE)
    }
    titles = {
        apis.Policy.SEND: "sent as is",
        apis.Policy.REMAP: "sent, with what the target assigns",
        apis.Policy.ALLOW: "only with `--allow`",
    }
    for policy, title in titles.items():
        assert documented[title] == {names.name(key) for key, api in apis.APIS.items() if api.policy is policy}


def test_every_option_is_explained() -> None:
    declared = declarations(ReplayOptions).values()
    options = {name for declaration in declared for name in declaration.spellings if not declaration.is_hidden}
    assert not [option for option in sorted(options - {"--out"}) if option not in TEXT]


def test_some_test_says_that_it_proves_each_module() -> None:
    proved = " ".join(
        (ast.get_docstring(ast.parse(path.read_text())) or "").partition("Proves:")[2]
        for path in (ROOT / "tests" / "replay").rglob("test_*.py")
    )
    modules = [path for path in (ROOT / "replay").rglob("*.py") if path.name != "__init__.py"]
    assert [path.name for path in modules if not re.search(rf"\b{path.stem}\.py", proved)] == []
