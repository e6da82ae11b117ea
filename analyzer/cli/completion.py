"""`kwire completion`: what a shell must know to complete commands, options and their choices.

In: the parser of the command line, so that nothing is listed twice. Out: a script for bash, zsh or fish. Where no word
is known (a capture, a filter) files are offered.
"""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from analyzer.cli.manual import TOPICS


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its spellings, what its help says, whether a value follows, and the values there are."""

    names: tuple[str, ...]
    about: str
    valued: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what it does, its options, and the words that may stand as its argument (none: files)."""

    name: str
    about: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


def commands(parser: argparse.ArgumentParser) -> list[Command]:
    """What a parser with subcommands knows."""
    listed: list[Command] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            about = {one.dest: one.help or "" for one in action._choices_actions}
            listed += [_command(name, about.get(name, ""), one) for name, one in action.choices.items()]
    topics = (*TOPICS, *(one.name for one in listed))
    return [dataclasses.replace(one, words=topics) if one.name == "help" else one for one in listed]


def _command(name: str, about: str, parser: argparse.ArgumentParser) -> Command:
    shown = [action for action in parser._actions if action.help != argparse.SUPPRESS]
    options = tuple(
        Option(
            tuple(action.option_strings),
            " ".join((action.help or "").split()),
            action.nargs != 0,
            tuple(map(str, action.choices or ())),
        )
        for action in shown
        if action.option_strings
    )
    words = [str(word) for action in shown if not action.option_strings for word in action.choices or ()]
    return Command(name, about, options, tuple(words))


def script(shell: str, parser: argparse.ArgumentParser) -> str:
    """The script for `bash`, `zsh` or `fish`."""
    return SHELLS[shell](commands(parser))


def _bash(listed: Sequence[Command]) -> str:
    lines = [
        "# kwire: completion for bash. source <(kwire completion bash)",
        "_kwire() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= words= at",
        '  [[ $word == "=" ]] && word=',
        '  [[ $previous == "=" ]] && previous=${COMP_WORDS[COMP_CWORD-2]}',
        "  for ((at = 1; at < COMP_CWORD; at++)); do",
        "    [[ ${COMP_WORDS[at]} != -* ]] && { command=${COMP_WORDS[at]}; break; }",
        "  done",
        "  COMPREPLY=()",
        "  case $command in",
        f'    "") words="{" ".join(one.name for one in listed)} --help --version" ;;',
    ]
    for one in listed:
        lines += [f"    {one.name})", "      case $previous in"]
        for option in one.options:
            if option.valued:
                values = f'words="{" ".join(option.choices)}"' if option.choices else "return"
                lines.append(f"        {'|'.join(option.names)}) {values} ;;")
        every = " ".join(name for option in one.options for name in option.names)
        lines.append(f'        *) words="{" ".join(one.words)}"; [[ $word == -* ]] && words="{every}" ;;')
        lines += ["      esac ;;"]
    lines += [
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _kwire kwire",
    ]
    return "\n".join(lines) + "\n"


def _zsh(listed: Sequence[Command]) -> str:
    lines = [
        "#compdef kwire",
        "# kwire: completion for zsh. kwire completion zsh > ~/.zfunc/_kwire, with ~/.zfunc in $fpath before compinit",
        "_kwire() {",
        "  local -a commands",
        "  commands=(",
        *(f"    {_quoted(f'{one.name}:{one.about}')}" for one in listed),
        "  )",
        "  if (( CURRENT == 2 )); then _describe command commands; return; fi",
        "  case ${words[2]} in",
    ]
    for one in listed:
        lines.append(f"    {one.name}) _arguments -s \\")
        for option in one.options:
            for name in option.names:
                value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
                spec = f"*{name}[{_bracketed(option.about)}]{value if option.valued else ''}"
                lines.append(f"      {_quoted(spec)} \\")
        rest = f"*:what:({' '.join(one.words)})" if one.words else "*:file:_files"
        lines.append(f"      {_quoted(rest)} ;;")
    begin = 'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _kwire "$@"; else compdef _kwire kwire; fi'
    lines += ["  esac", "}", begin]
    return "\n".join(lines) + "\n"


def _fish(listed: Sequence[Command]) -> str:
    names = " ".join(one.name for one in listed)
    lines = ["# kwire: completion for fish. kwire completion fish > ~/.config/fish/completions/kwire.fish"]
    first = f"complete -c kwire -n 'not __fish_seen_subcommand_from {names}' -f"
    lines += [f"{first} -a {one.name} -d {_fished(one.about)}" for one in listed]
    for one in listed:
        here = f"complete -c kwire -n '__fish_seen_subcommand_from {one.name}'"
        if one.words:
            lines.append(f"{here} -f -a '{' '.join(one.words)}'")
        for option in one.options:
            spelled = " ".join(f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names)
            value = f" -x -a '{' '.join(option.choices)}'" if option.choices else " -r" if option.valued else ""
            lines.append(f"{here} {spelled}{value} -d {_fished(option.about)}")
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _fished(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


def _bracketed(text: str) -> str:
    return re.sub(r"([\[\]:\\])", r"\\\1", text)


SHELLS: dict[str, Callable[[Sequence[Command]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
