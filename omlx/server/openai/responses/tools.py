"""Tools of the Responses API as the model is told of them: functions, custom tools, and namespaces of both.

`custom` tools take a text; a model calls them with an object that holds it. A function of a namespace is told as
`namespace.function`, and its calls go out with both names apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlx.errors import BadRequest
from omlx.server import tooling
from omlx.server.dialect import Json
from omlx.server.fields import Body, Listed, Text

_INPUT: Final[Json] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_BETWEEN: Final = "."


class Tool(Body):
    type: str
    name: Text | None = None
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    tools: Listed[Tool] | None = None


@dataclass(frozen=True, slots=True)
class Called:
    """What a call goes out as."""

    name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def told(self) -> str:
        """The name by which the model knows it."""
        return self.name if self.namespace is None else f"{self.namespace}{_BETWEEN}{self.name}"


def functions(tools: Sequence[Tool]) -> list[Json]:
    """As templates know them. Raises BadRequest for tools that run on the API's own servers."""
    return [
        tooling.function(named.told, tool.description, _INPUT if named.custom else tool.parameters)
        for named, tool in _flat(tools)
    ]


def strict(tools: Sequence[Tool]) -> list[str]:
    """The names, as the model knows them, of functions whose calls must have their schema."""
    return [named.told for named, tool in _flat(tools) if tool.strict]


def by_told_name(tools: Sequence[Tool]) -> dict[str, Called]:
    return {named.told: named for named, _ in _flat(tools)}


def _flat(
    tools: Sequence[Tool], namespace: str | None = None, field: str = "tools"
) -> Iterator[tuple[Called, Tool]]:
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        inside = tool.type == "namespace" and namespace is None
        if not inside and tool.type not in ("function", "custom"):
            raise BadRequest("tools.server", param=at, field=at, type=tool.type)
        if tool.name is None:
            raise BadRequest("request.missing", param=f"{at}.name", field=f"{at}.name")
        if inside:
            yield from _flat(tool.tools or (), tool.name, f"{at}.tools")
        else:
            yield Called(tool.name, namespace, tool.type == "custom"), tool
