"""Give groups, transactional ids and clients of a RUN the names that they had when captured. Pure.

In: rows and decoded bodies of a RUN whose replay gave them other names (`--prefix-groups`, `--map-group`). Out: the
same with captured names, so that two RUNs under different names can be compared. Topics have a mapping of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kwire.analyzer.protocol import api_keys
from kwire.analyzer.protocol.tree import Body

_NAMED: Final = frozenset(("groupId", "transactionalId", "v3AndBelowTransactionalId", "clientId", "key"))
"""Fields that hold a group, a transactional id or a client id; `key` is that of FindCoordinator."""
_LISTS: Final = frozenset(("groups", "groupIds", "groupsNames", "transactionalIds", "coordinatorKeys"))
"""Fields that hold a list of them."""
_COLUMNS: Final = ("group_id", "transactional_id", "client_id")
_GROUP_RESOURCE: Final = 32
"""The type of a resource of DescribeConfigs that is a group (ConfigResource.Type)."""


@dataclass(frozen=True, slots=True)
class CapturedNames:
    """The captured names behind those of a RUN. `prefix`: of all but some groups; `groups`: those, by new name."""

    prefix: str = ""
    groups: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.prefix or self.groups)

    def of(self, name: str) -> str:
        """The captured name."""
        return self.groups.get(name) or name.removeprefix(self.prefix)

    def in_row(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the table `exchanges` with captured names."""
        return {**row, **{column: self.of(row[column]) for column in _COLUMNS if row.get(column)}}

    def in_body(self, api_key: int, body: Body) -> Body:
        """A decoded request or answer with captured names."""
        named = _NAMED if api_key == api_keys.FIND_COORDINATOR else _NAMED - {"key"}
        renamed: Body = self._walked(body, named)
        return renamed

    def in_audit(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the table `audit` with captured names."""
        transactions = row.get("transactions")
        if not transactions:
            return row
        named = [{**each, "transactional_id": self.of(each["transactional_id"])} for each in transactions]
        return {**row, "transactions": named}

    def _walked(self, value: Any, named: frozenset[str], called: str = "") -> Any:
        if isinstance(value, dict):
            walked = {name: self._walked(inner, named, name) for name, inner in value.items()}
            if walked.get("resourceType") == _GROUP_RESOURCE and isinstance(walked.get("resourceName"), str):
                walked["resourceName"] = self.of(walked["resourceName"])
            return walked
        if isinstance(value, list):
            return [
                self.of(element)
                if called in _LISTS and isinstance(element, str)
                else self._walked(element, named, called if isinstance(element, list) else "")
                for element in value
            ]
        return self.of(value) if called in named and isinstance(value, str) else value
