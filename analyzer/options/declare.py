"""Declare a command's options as fields of a frozen dataclass, once for the command line, Python and completion.

In: dataclasses whose fields are made by `option`, `flag`, `repeated` and `argument`. Out: argparse's options
(`add_options`), a command's options as parsed (`options_of`), what a shell completes (`declarations`), and functions
whose keywords are the fields (`keywords_of`). A field without a declaration is no option of the command line.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

T = TypeVar("T")
R = TypeVar("R")
S = TypeVar("S")
P = ParamSpec("P")

HIDDEN = argparse.SUPPRESS
"""The help of an option that nothing lists."""

_KEY = "declaration"


class Declaration(NamedTuple):
    """How the command line spells a field, and what argparse knows of it.

    names: spellings, none for a positional argument. old_names: spellings that still work and that nothing lists.
    group: title of the section of --help. exclusive: fields with the same word here exclude each other.
    """

    names: tuple[str, ...]
    argparse: Mapping[str, Any]
    old_names: tuple[str, ...] = ()
    group: str = ""
    exclusive: str = ""

    @property
    def is_hidden(self) -> bool:
        """No help and no completion lists it."""
        return self.argparse.get("help") == HIDDEN

    @property
    def spellings(self) -> tuple[str, ...]:
        """All names that are listed."""
        negated = self.argparse.get("action") is argparse.BooleanOptionalAction
        return (*self.names, *(f"--no-{name[2:]}" for name in self.names if negated))

    @property
    def takes_value(self) -> bool:
        """A value follows it."""
        return self.argparse.get("action") in (None, "append")


def option(
    *names: str,
    help: str,
    default: Any = None,
    parse: Callable[[str], Any] | None = None,
    metavar: str | None = None,
    choices: Sequence[str] | None = None,
    required: bool = False,
    group: str = "",
    exclusive: str = "",
) -> Any:
    """A field with one value. `parse` turns text into it, and raises argparse.ArgumentTypeError."""
    known = {"type": parse, "metavar": metavar, "choices": choices, "required": required or None}
    given = {"help": help, **{name: value for name, value in known.items() if value is not None}}
    metadata = {_KEY: Declaration(names, given, group=group, exclusive=exclusive)}
    return dataclasses.field(metadata=metadata) if required else dataclasses.field(default=default, metadata=metadata)


def flag(
    *names: str, help: str, default: bool = False, group: str = "", exclusive: str = "", old: Sequence[str] = ()
) -> Any:
    """A field that is `default`, and its opposite where the flag is given."""
    given = {"help": help, "action": "store_false" if default else "store_true"}
    return dataclasses.field(default=default, metadata={_KEY: Declaration(names, given, tuple(old), group, exclusive)})


def yes_or_no(name: str, *, help: str, group: str = "") -> Any:
    """A field that is None, True with `--name`, and False with `--no-name`."""
    given = {"help": help, "action": argparse.BooleanOptionalAction}
    return dataclasses.field(default=None, metadata={_KEY: Declaration((name,), given, group=group)})


def repeated(
    name: str, *, help: str, parse: Callable[[str], Any] | None = None, metavar: str | None = None, group: str = ""
) -> Any:
    """A field with a list of values, one for each time that the option is given."""
    given = {"help": help, "metavar": metavar, "action": "append", **({"type": parse} if parse is not None else {})}
    return dataclasses.field(default_factory=list, metadata={_KEY: Declaration((name,), given, group=group)})


def argument(
    metavar: str | None = None,
    *,
    nargs: str | None = None,
    help: str | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """A positional field: required without `nargs`, None by default with `?`, a list with `*` and `+`."""
    known = {"metavar": metavar, "nargs": nargs, "help": help, "choices": choices}
    metadata = {_KEY: Declaration((), {name: value for name, value in known.items() if value is not None})}
    if nargs == "?":
        return dataclasses.field(default=None, metadata=metadata)
    return dataclasses.field(metadata=metadata)


def declarations(options: type) -> dict[str, Declaration]:
    """The declarations of a command's options by field, in order of --help."""
    return {field.name: field.metadata[_KEY] for field in dataclasses.fields(options) if _KEY in field.metadata}


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add a command's options to its parser."""
    groups: dict[str, Any] = {"": parser}
    exclusive: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        declared: Declaration | None = field.metadata.get(_KEY)
        if declared is None:
            continue
        if declared.group not in groups:
            groups[declared.group] = parser.add_argument_group(declared.group)
        target = groups[declared.group]
        if declared.exclusive:
            if declared.exclusive not in exclusive:
                exclusive[declared.exclusive] = target.add_mutually_exclusive_group()
            target = exclusive[declared.exclusive]
        if not declared.names:
            target.add_argument(field.name, **declared.argparse)
            continue
        default = field.default_factory() if callable(field.default_factory) else field.default
        if not declared.argparse.get("required"):
            target.add_argument(*declared.names, dest=field.name, default=default, **declared.argparse)
        else:
            target.add_argument(*declared.names, dest=field.name, **declared.argparse)
        if declared.old_names:
            hidden = {**declared.argparse, "help": HIDDEN, "default": argparse.SUPPRESS}
            target.add_argument(*declared.old_names, dest=field.name, **hidden)


def options_of(options: type[T], parsed: argparse.Namespace) -> T:
    """The options of a command as its parser read them."""
    return options(**{name: getattr(parsed, name) for name in declarations(options)})


def keywords_of(options: Callable[P, T]) -> Callable[[Callable[[S, T], R]], Callable[Concatenate[S, P], R]]:
    """Make a function of (argument, options) one of (argument, *, a keyword for each field)."""

    def decorate(function: Callable[[S, T], R]) -> Callable[Concatenate[S, P], R]:
        import functools
        import inspect

        @functools.wraps(function)
        def with_keywords(argument: S, /, *arguments: P.args, **keywords: P.kwargs) -> R:
            return function(argument, options(*arguments, **keywords))

        first, *_ = inspect.signature(function).parameters.values()
        parameters = [first, *inspect.signature(options).parameters.values()]
        with_keywords.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return with_keywords

    return decorate
