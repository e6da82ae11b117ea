"""What replay/README.md says of APIs, rules and options is what the code has."""

from __future__ import annotations

import argparse
import re

from analyzer import cli, schema
from replay import apis, steps
from tests.shared import ROOT

TEXT = (ROOT / "replay" / "README.md").read_text()


def test_every_rule_is_explained_in_the_same_words() -> None:
    told = dict(re.findall(r"^\| `([a-z_0-9]+)` \| (.+) \|$", TEXT, re.MULTILINE))
    assert {name: told.get(name) for name in steps.RULES} == steps.RULES


def test_every_api_has_a_policy() -> None:
    assert sorted(apis.APIS) == [api.api_key for api in schema.apis()]


def test_the_table_of_apis_is_the_codes() -> None:
    said = {
        policy: set(names.split(", "))
        for policy, names in re.findall(r"^\| (sent.*|only with `--allow`) \| ([A-Za-z, ]+) \|$", TEXT, re.MULTILINE)
    }
    titles = {apis.Policy.SEND: "sent as is", apis.Policy.REMAP: "sent, with what the target assigns",
              apis.Policy.ALLOW: "only with `--allow`"}  # fmt: skip
    for policy, title in titles.items():
        assert said[title] == {apis.name(key) for key, api in apis.APIS.items() if api.policy is policy}


def test_every_option_is_explained() -> None:
    parser = cli._parser()
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    options = {option for action in commands.choices["replay"]._actions for option in action.option_strings}
    assert not [option for option in sorted(options - {"-h", "--help", "--out"}) if option not in TEXT]
