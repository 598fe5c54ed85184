"""Tools of the Responses API as templates list them: functions, custom tools, and namespaces of
both.

`custom` tools take a text; the model calls them with an object that holds it. The model sees a
function of a namespace as `namespace.function`; in responses, its calls have both names as separate
fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from omlx.server import tooling
from omlx.server.dialect import Json
from omlx.server.errors import field_error
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
class ToolName:
    """A tool as calls in responses name it."""

    name: str
    namespace: str | None = None
    custom: bool = False

    @property
    def qualified(self) -> str:
        """The name that the model sees."""
        if self.namespace is None:
            return self.name
        return f"{self.namespace}{_BETWEEN}{self.name}"


def functions(tools: Sequence[Tool]) -> list[Json]:
    """As templates expect them. Raises BadRequest for tools that run on OpenAI's servers."""
    declared = []
    for name, tool in _flat(tools):
        parameters = _INPUT if name.custom else tool.parameters
        declared.append(tooling.function(name.qualified, tool.description, parameters))
    return declared


def strict(tools: Sequence[Tool]) -> list[str]:
    """Qualified names of functions whose arguments must match their schema."""
    return [name.qualified for name, tool in _flat(tools) if tool.strict]


def by_qualified_name(tools: Sequence[Tool]) -> dict[str, ToolName]:
    return {name.qualified: name for name, _ in _flat(tools)}


def _flat(
    tools: Sequence[Tool], namespace: str | None = None, field: str = "tools"
) -> Iterator[tuple[ToolName, Tool]]:
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        is_namespace = tool.type == "namespace" and namespace is None
        if not is_namespace and tool.type not in ("function", "custom"):
            raise field_error("tools.server", at, type=tool.type)
        if tool.name is None:
            raise field_error("request.missing", f"{at}.name")
        if is_namespace:
            yield from _flat(tool.tools or (), tool.name, f"{at}.tools")
        else:
            yield ToolName(tool.name, namespace, tool.type == "custom"), tool
