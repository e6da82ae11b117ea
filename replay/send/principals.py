"""Reads the file of `--principals`: captured users, and the credentials for each of them.

    [alice]                            # as she was called when captured
    mechanism = "SCRAM-SHA-512"
    username = "alice-staging"
    password = "..."

In: a TOML file, a table per captured user. Out: `Credentials` by captured user; a `Dial` that knows them all. Rules: a
file that others may read is refused, because it has passwords; an error contains nothing of the file but a table's
name; a captured user without credentials, and a login that the target refuses, are reported before anything is sent.
"""

from __future__ import annotations

import os
import re
import stat
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kwire.analyzer.common.listing import listed
from kwire.captures.errors import KwireError
from kwire.replay.plan.sessions import Session
from kwire.replay.send import login
from kwire.replay.send.channel import connect
from kwire.replay.send.link import Dial, Link, LinkError, Receiver

_LARGEST: Final = 1 << 20
"""Bytes of a file: thousands of users."""
_KEYS: Final = ("mechanism", "username", "password")
_HINT: Final = "a table per captured user, with mechanism, username and password (docs/reference/replay.md)"
_SHOWN: Final = 5


class MissingCredentialsError(KwireError):
    """Captured users have no credentials."""

    def __init__(self, users: Iterable[str]) -> None:
        known = sorted(users)
        named = listed(known[:_SHOWN], len(known))
        text = f"--principals has no table for the captured user{'s' * (len(known) > 1)} {named}"
        super().__init__(text, "add a table for each; --sasl logs in for whoever has none")


def read(path: str) -> dict[str, login.Credentials]:
    """Read the credentials by captured user, in the file's order. Raises LinkError."""
    try:
        with open(path, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise LinkError(f"--principals {path}: not a file", _HINT)
            if mode & (stat.S_IRWXG | stat.S_IRWXO):
                raise LinkError(f"--principals {path}: others can read it, and it has passwords", f"chmod 600 {path}")
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise LinkError(f"--principals {path}: more than {_LARGEST >> 20} MiB", _HINT)
        tables = tomllib.loads(content.decode())
    except OSError as failure:
        raise LinkError(f"--principals {path}: {failure.strerror}", _HINT) from None
    except UnicodeDecodeError:
        raise LinkError(f"--principals {path}: not UTF-8", _HINT) from None
    except (tomllib.TOMLDecodeError, RecursionError) as failure:
        # What it says may quote the file.
        line = re.search(r"at line (\d+)", str(failure))
        raise LinkError(f"--principals {path}: not TOML" + (f", line {line[1]}" if line else ""), _HINT) from None
    if not tables:
        raise LinkError(f"--principals {path}: has no table", _HINT)
    return {user: _credentials(path, user, table) for user, table in tables.items()}


def _credentials(path: str, user: str, table: Any) -> login.Credentials:
    where = f"--principals {path}: [{user}]"
    if not isinstance(table, dict):
        raise LinkError(f"{where} is no table", _HINT)
    for name in _KEYS:
        if not isinstance(table.get(name), str):
            raise LinkError(f"{where} has no {name}", _HINT)
    if len(table) > len(_KEYS):
        raise LinkError(f"{where} has more than {', '.join(_KEYS)}", _HINT)
    if table["mechanism"] not in login.MECHANISMS:
        raise LinkError(f"{where}: mechanism is not one of {', '.join(login.MECHANISMS)}", "choose one of these")
    return login.Credentials(table["mechanism"], table["username"], table["password"])


def check(sessions: Iterable[Session], known: Mapping[str, login.Credentials]) -> None:
    """Check that each captured user has credentials. Raises MissingCredentialsError."""
    absent = {session.user for session in sessions if session.user is not None} - known.keys()
    if absent:
        raise MissingCredentialsError(user for user in absent if user is not None)


def are_all(sessions: Iterable[Session], known: Mapping[str, login.Credentials]) -> bool:
    """Whether each captured user has credentials of its own."""
    return bool(known) and {session.user for session in sessions} - {None} <= known.keys()


async def log_in(dial: Dial, users: Iterable[str | None], host: str, port: int) -> None:
    """Log in once as each of these captured users, before anything is sent. Raises LinkError, which names the captured
    user whose login the target refuses."""
    for user in sorted(filter(None, users)):
        if not isinstance(dial, Dials) or user not in dial.users:
            continue
        try:
            channel = await connect(dial.users[user], host, port)
        except LinkError as refused:
            raise LinkError(f"--principals: [{user}]: {refused.message}", refused.hint) from None
        channel.close()


@dataclass(frozen=True, slots=True)
class Dials:
    """A `Dial` for the replayer's own requests and for connections without a captured user, and one for each user."""

    own: Dial
    users: Mapping[str, Dial]

    async def __call__(self, host: str, port: int, receiver: Receiver) -> Link:
        return await self.own(host, port, receiver)


def of(dial: Dial, user: str | None) -> Dial:
    """How connections of a captured user are dialled."""
    return dial.users.get(user, dial.own) if isinstance(dial, Dials) and user is not None else dial
