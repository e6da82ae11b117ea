"""`kwire completion`: what a shell must know to complete commands, options and their choices.

In: the declarations of commands (`kwire.analyzer.options`). Out: a script for bash, zsh or fish. Where no word is known
(a capture, a filter) files are offered.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kwire.analyzer.cli.manual import TOPICS
from kwire.analyzer.options.commands import COMMANDS, Command
from kwire.analyzer.options.declare import Declaration, declarations


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its spellings, what its help says, whether a value follows, and the values there are."""

    names: tuple[str, ...]
    about: str
    valued: bool
    choices: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CommandWords:
    """One command: what it does, its options, and the words that may stand as its argument (none: files)."""

    name: str
    about: str
    options: tuple[Option, ...]
    words: tuple[str, ...]


_HELP = Option(("-h", "--help"), "show this help message and exit", False, ())


def commands() -> list[CommandWords]:
    """All commands as they are declared."""
    known = [_command(command) for command in COMMANDS.values()]
    topics = (*TOPICS, *COMMANDS)
    return [dataclasses.replace(command, words=topics) if command.name == "help" else command for command in known]


def _command(command: Command) -> CommandWords:
    declared = [each for each in declarations(command.options()).values() if not each.is_hidden]
    options = (_option(each) for each in declared if each.names)
    words = [word for each in declared if not each.names for word in each.argparse.get("choices", ())]
    return CommandWords(command.name, command.about, (_HELP, *options), tuple(words))


def _option(declared: Declaration) -> Option:
    text = " ".join(declared.argparse["help"].split())
    return Option(declared.spellings, text, declared.takes_value, tuple(declared.argparse.get("choices", ())))


def script(shell: str) -> str:
    """The script for `bash`, `zsh` or `fish`."""
    return SHELLS[shell](commands())


def _bash(listed: Sequence[CommandWords]) -> str:
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
        f'    "") words="{" ".join(command.name for command in listed)} --help --version" ;;',
    ]
    for command in listed:
        lines += [f"    {command.name})", "      case $previous in"]
        for option in command.options:
            if option.valued:
                values = f'words="{" ".join(option.choices)}"' if option.choices else "return"
                lines.append(f"        {'|'.join(option.names)}) {values} ;;")
        every = " ".join(name for option in command.options for name in option.names)
        lines.append(f'        *) words="{" ".join(command.words)}"; [[ $word == -* ]] && words="{every}" ;;')
        lines += ["      esac ;;"]
    lines += [
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "}",
        "complete -o default -F _kwire kwire",
    ]
    return "\n".join(lines) + "\n"


def _zsh(listed: Sequence[CommandWords]) -> str:
    lines = [
        "#compdef kwire",
        "# kwire: completion for zsh. kwire completion zsh > ~/.zfunc/_kwire, with ~/.zfunc in $fpath before compinit",
        "_kwire() {",
        "  local -a commands",
        "  commands=(",
        *(f"    {_quoted(f'{command.name}:{command.about}')}" for command in listed),
        "  )",
        "  if (( CURRENT == 2 )); then _describe command commands; return; fi",
        "  case ${words[2]} in",
    ]
    for command in listed:
        lines.append(f"    {command.name}) _arguments -s \\")
        for option in command.options:
            for name in option.names:
                value = f":value:({' '.join(option.choices)})" if option.choices else ":value:_files"
                spec = f"*{name}[{_bracketed(option.about)}]{value if option.valued else ''}"
                lines.append(f"      {_quoted(spec)} \\")
        rest = f"*:what:({' '.join(command.words)})" if command.words else "*:file:_files"
        lines.append(f"      {_quoted(rest)} ;;")
    begin = 'if [[ $zsh_eval_context[-1] == loadautofunc ]]; then _kwire "$@"; else compdef _kwire kwire; fi'
    lines += ["  esac", "}", begin]
    return "\n".join(lines) + "\n"


def _fish(listed: Sequence[CommandWords]) -> str:
    names = " ".join(command.name for command in listed)
    lines = ["# kwire: completion for fish. kwire completion fish > ~/.config/fish/completions/kwire.fish"]
    first = f"complete -c kwire -n 'not __fish_seen_subcommand_from {names}' -f"
    lines += [f"{first} -a {command.name} -d {_fished(command.about)}" for command in listed]
    for command in listed:
        here = f"complete -c kwire -n '__fish_seen_subcommand_from {command.name}'"
        if command.words:
            lines.append(f"{here} -f -a '{' '.join(command.words)}'")
        for option in command.options:
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


SHELLS: dict[str, Callable[[Sequence[CommandWords]], str]] = {"bash": _bash, "zsh": _zsh, "fish": _fish}
