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

from omlx.errors import Reason
from omlx.server.http.errors import field_error
from omlx.server.request import tools as tooling
from omlx.server.request.dialect import Json
from omlx.server.request.fields import FUNCTION, Body, Listed, Text, ToolType
from omlx.server.request.tools import skipped

_INPUT: Final[Json] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
}
_BETWEEN: Final = "."
_NAMESPACE: Final = "namespace"
CALLABLE: Final = (FUNCTION, "custom")
"""Types of tools that the model can call."""


class Tool(Body):
    type: ToolType = FUNCTION
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


def joined(tools: Sequence[Tool], further: Sequence[Tool]) -> list[Tool]:
    """The tools, and those of `further` whose names are new: items repeat what a request lists."""
    names = set(by_qualified_name(tools))
    every = list(tools)
    for tool in further:
        if tool.type == _NAMESPACE:
            inner = [part for part in tool.tools or () if _qualified(part, tool) not in names]
            tool = tool.model_copy(update={"tools": inner})
        elif tool.type not in CALLABLE or names.issuperset(by_qualified_name([tool])):
            continue
        names.update(by_qualified_name([tool]))
        every.append(tool)
    return every


def functions(tools: Sequence[Tool]) -> list[Json]:
    """As templates expect them, without those that are skipped."""
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


def warnings(tools: Sequence[Tool], *, nested: bool = False, field: str = "tools") -> list[Reason]:
    """Of the tools that are skipped."""
    reasons = []
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        if tool.type == _NAMESPACE and not nested:
            reasons += warnings(tool.tools or (), nested=True, field=f"{at}.tools")
        elif tool.type not in CALLABLE:
            reasons.append(skipped(tool.type, at))
    return reasons


def _qualified(tool: Tool, namespace: Tool) -> str:
    return ToolName(tool.name or "", namespace.name).qualified


def _flat(
    tools: Sequence[Tool], namespace: str | None = None, field: str = "tools"
) -> Iterator[tuple[ToolName, Tool]]:
    """Yield what the model may call. Raises BadRequest for a tool without a name."""
    for i, tool in enumerate(tools):
        at = f"{field}[{i}]"
        is_namespace = tool.type == _NAMESPACE and namespace is None
        if not is_namespace and tool.type not in CALLABLE:
            continue
        if tool.name is None:
            raise field_error("request.missing", f"{at}.name")
        if is_namespace:
            yield from _flat(tool.tools or (), tool.name, f"{at}.tools")
        else:
            yield ToolName(tool.name, namespace, tool.type == "custom"), tool
