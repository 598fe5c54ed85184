"""JSON schemas: traversal, references, and the types and members that they allow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import unquote

T = TypeVar("T")
Schema: TypeAlias = Mapping[str, Any]

TYPES: Final = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
BOUNDS: Final = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
NUMBER_BOUNDS: Final = (*BOUNDS, "multipleOf")
DEFINITIONS: Final = ("$defs", "definitions")
BY_NAME: Final = ("properties", "patternProperties", *DEFINITIONS)
"""Keywords whose value is schemas by name."""
NOTES: Final = frozenset({"title", "description", "default", "examples", "$comment", "$schema"})
"""Keywords that constrain nothing."""
COMBINED: Final = ("$ref", "allOf", "anyOf", "oneOf")
SHARED: Final = (*DEFINITIONS, "x-guidance")
"""Keywords at the root that a part of the schema needs, too."""
MAX_ALTERNATIVES: Final = 32
_DATA: Final = frozenset({"const", "enum", "default", "examples"})
"""Keywords whose content is data, not schemas."""


def map_schemas(schema: Any, change: Callable[[dict[str, Any]], Any]) -> Any:
    """Return a copy with `change` applied to each schema, inner schemas first.

    `change` may modify its argument. Raises RecursionError for a schema nested too deep.
    """
    if isinstance(schema, list):
        return [map_schemas(part, change) for part in schema]
    if not isinstance(schema, Mapping):
        return schema
    mapped = {}
    for key, value in schema.items():
        if key in BY_NAME and isinstance(value, Mapping):
            mapped[key] = {name: map_schemas(part, change) for name, part in value.items()}
        elif key in _DATA:
            mapped[key] = value
        else:
            mapped[key] = map_schemas(value, change)
    return change(mapped)


def resolve(root: Any, reference: Any) -> Any:
    """Return the target of a JSON pointer within a schema; None for an invalid pointer."""
    if not isinstance(reference, str):
        return None
    target = root
    first, *parts = unquote(reference).split("/")
    if first != "#":
        return None
    for part in parts:
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(target, list) and key.isdecimal() and int(key) < len(target):
            target = target[int(key)]
        elif isinstance(target, Mapping) and key in target:
            target = target[key]
        else:
            return None
    return target


def references(schema: Any) -> Iterator[str]:
    """Yield every string under `$ref`; callers tolerate those inside data."""
    if isinstance(schema, Mapping):
        if isinstance(schema.get("$ref"), str):
            yield schema["$ref"]
        schema = list(schema.values())
    for part in listed(schema):
        yield from references(part)


def embedded(schema: Schema, root: Schema) -> dict[str, Any]:
    """Return a part of a schema as a schema of its own, with referenced definitions."""
    shared = {key: root[key] for key in SHARED if key in root}
    definitions = tuple(f"#/{key}/" for key in DEFINITIONS)
    if all(name.startswith(definitions) for name in references([schema, shared])):
        return {**schema, **shared}

    def moved(part: dict[str, Any]) -> dict[str, Any]:
        reference = part.get("$ref")
        if isinstance(reference, str) and reference.startswith("#"):
            part["$ref"] = f"#/$defs/root{reference[1:]}"
        return part

    whole = {key: value for key, value in root.items() if key != "x-guidance"}
    part = {key: value for key, value in schema.items() if key not in SHARED}
    guidance = {key: value for key, value in shared.items() if key == "x-guidance"}
    defined = {"$defs": {"root": map_schemas(whole, moved)}}
    return {**map_schemas(part, moved), **defined, **guidance}


def holds(schema: Any, test: Callable[[Schema], bool], follow: Callable[[str], bool]) -> bool:
    """Return whether `test` holds of a schema, of all combined parts, and of an alternative.

    `follow` decides for the target of a reference.
    """
    if not isinstance(schema, Mapping):
        return schema is not False
    reference = schema.get("$ref")
    if isinstance(reference, str) and not follow(reference):
        return False
    if not all(holds(part, test, follow) for part in listed(schema.get("allOf"))):
        return False
    for key in ("anyOf", "oneOf"):
        options = listed(schema.get(key))
        if options and not any(holds(option, test, follow) for option in options):
            return False
    return test(schema)


class SchemaTypes:
    """Types of the values that a JSON schema allows; its references begin at `root`."""

    def __init__(self, root: Any) -> None:
        self.root: Schema = root if isinstance(root, Mapping) else {}
        self._known: dict[int, tuple[Schema, frozenset[str]]] = {}
        self._texts: dict[str, bool] = {}
        self._properties: dict[str, Any] = {}

    def resolve(self, reference: Any) -> Any:
        return resolve(self.root, reference)

    def kinds(self, schema: Any) -> frozenset[str]:
        """Return the allowed types; all types for a contradiction."""
        return self._kinds(schema) or TYPES

    def branches(self, schema: Any) -> Iterator[Schema]:
        """Yield a schema, and all referenced or combined schemas, each once."""
        seen, waiting = set[int](), [schema]
        while waiting:
            part = waiting.pop()
            if not isinstance(part, Mapping) or id(part) in seen:
                continue
            seen.add(id(part))
            yield part
            for key in ("allOf", "oneOf", "anyOf"):
                waiting += reversed(listed(part.get(key)))
            waiting.append(self.resolve(part.get("$ref")))

    def choices(self, schema: Any) -> list[str]:
        """Return the strings that a schema enumerates anywhere."""
        found: list[str] = []
        for branch in self.branches(schema):
            for values in (branch.get("enum"), [branch.get("const")]):
                found += (choice for choice in listed(values) if isinstance(choice, str))
        return list(dict.fromkeys(found))

    def enumerated(self, schema: Any) -> list[str]:
        """Return the strings of `choices` that all enumerations of a schema allow."""
        choices = self.choices(schema)
        every = frozenset(choices)
        known: dict[str, frozenset[str]] = {}

        def follow(reference: str) -> frozenset[str]:
            if reference not in known:
                known[reference] = frozenset()  # ends circular references
                known[reference] = of(self.resolve(reference))
            return known[reference]

        def of(part: Any) -> frozenset[str]:
            if not isinstance(part, Mapping):
                return frozenset() if part is False else every
            found = every
            if "enum" in part:
                found &= {value for value in listed(part["enum"]) if isinstance(value, str)}
            if "const" in part:
                found &= {part["const"]} if isinstance(part["const"], str) else frozenset()
            if isinstance(part.get("$ref"), str):
                found &= follow(part["$ref"])
            found = found.intersection(*map(of, listed(part.get("allOf"))))
            for key in ("anyOf", "oneOf"):
                if options := listed(part.get(key)):
                    found &= frozenset[str]().union(*map(of, options))
            return found

        allowed = of(schema)
        return [choice for choice in choices if choice in allowed]

    def free_text(self, schema: Any) -> bool:
        return holds(schema, self.allows_text, self._refers_to_text)

    def declared(self, name: str) -> list[Any]:
        """Return the schemas of a property, by all alternatives at the root."""
        parts = map(properties_of, self.branches(self.root))
        return [part[name] for part in parts if name in part]

    def property(self, name: str) -> Any:
        if name not in self._properties:
            declared = self.declared(name)
            schema = self.root.get("additionalProperties", True)
            if declared:
                schema = declared[0] if len(declared) == 1 else {"anyOf": declared}
            self._properties[name] = schema
        return self._properties[name]

    def alternatives(
        self,
        schema: Any,
        own: Callable[[Schema], T],
        both: Callable[[T, T], T | None],
        takes: Callable[[Schema], bool],
    ) -> list[T]:
        """Return the disjunctive normal form of a schema: the demands of each alternative.

        `own` reads the keywords of a schema, `both` combines two results of `own`, None if no
        value follows both; schemas that `takes` refuses are no alternatives. Raises ValueError for
        a circular reference, and for too many alternatives.
        """
        known: dict[str, list[T] | None] = {}

        def follow(reference: str) -> list[T]:
            if reference not in known:
                known[reference] = None
                known[reference] = of(self.resolve(reference))
            found = known[reference]
            if found is None:
                raise ValueError("a circular reference")
            return found

        def of(part: Any) -> list[T]:
            if not isinstance(part, Mapping):
                return [] if part is False else [own({})]
            if not takes(part):
                return []
            demands = []
            if isinstance(part.get("$ref"), str):
                demands.append(follow(part["$ref"]))
            demands += map(of, listed(part.get("allOf")))
            for key in ("anyOf", "oneOf"):
                if key in part:
                    demands.append([one for option in listed(part[key]) for one in of(option)])
            found = [own(part)]
            for demand in demands:
                pairs = (both(first, second) for first, second in product(found, demand))
                found = [pair for pair in pairs if pair is not None]
                if len(found) > MAX_ALTERNATIVES:
                    raise ValueError(f"it has more than {MAX_ALTERNATIVES} alternatives")
            return found

        return of(schema)

    def _refers_to_text(self, reference: str) -> bool:
        if reference not in self._texts:
            self._texts[reference] = False  # ends circular references
            self._texts[reference] = self.free_text(self.resolve(reference))
        return self._texts[reference]

    def allows_text(self, part: Schema) -> bool:
        """Return whether the keywords of a schema allow strings that it does not enumerate."""
        return "enum" not in part and "const" not in part and "string" in self.kinds(part)

    def _kinds(self, schema: Any) -> frozenset[str]:
        if not isinstance(schema, Mapping):
            return TYPES
        if id(schema) not in self._known:
            self._known[id(schema)] = schema, frozenset()  # ends circular references
            # Keeps the schema alive: a later object could get the same id.
            self._known[id(schema)] = schema, self._examine(schema)
        return self._known[id(schema)][1]

    def _examine(self, schema: Schema) -> frozenset[str]:
        kinds = _named_types(schema.get("type"))
        if "const" in schema:
            kinds &= {type_of(schema["const"])}
        if isinstance(schema.get("enum"), list):
            kinds &= set(map(type_of, schema["enum"]))
        target = self.resolve(schema.get("$ref"))
        if target is not None:
            kinds &= self._kinds(target)
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list):
                kinds &= frozenset[str]().union(*map(self._kinds, schema[key]))
        return kinds.intersection(*map(self._kinds, listed(schema.get("allOf"))))


def object_alternatives(schema: Schema) -> list[Schema]:
    """Return schemas without combinations; an object must follow one of them.

    Raises ValueError for too many alternatives, circular references, and if nothing is allowed.
    """
    if not any(key in schema for key in COMBINED):
        return [schema]
    types = SchemaTypes(schema)
    found = types.alternatives(schema, _own, _both, lambda part: "object" in types.kinds(part))
    if not found:
        raise ValueError("nothing has this form")
    return found


def _own(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if key not in COMBINED}


def _both(first: Schema, second: Schema) -> Schema | None:
    # None: no object follows both.
    properties = dict(first.get("properties", {}))
    for name, value in second.get("properties", {}).items():
        if name in properties and properties[name] != value:
            value = {"allOf": [properties[name], value]}
        properties[name] = value
    required = list(dict.fromkeys([*first.get("required", ()), *second.get("required", ())]))
    for part in (first, second):
        if part.get("additionalProperties") is False:
            properties = {name: properties[name] for name in part.get("properties", {})}
            if not set(required) <= set(properties):
                return None
    both = {**first, **second, "properties": properties, "required": required}
    if first.get("additionalProperties") is False:
        both["additionalProperties"] = False
    return both


def properties_of(schema: Any) -> Mapping[str, Any]:
    """Return the declared properties of an object; empty for another schema."""
    declared = schema.get("properties") if isinstance(schema, Mapping) else None
    return declared if isinstance(declared, Mapping) else {}


def members(schema: Schema) -> Iterator[tuple[str, Any, bool]]:
    """Yield the name, the schema and `required` of each member of an object."""
    required = schema.get("required", ())
    properties = {**schema.get("properties", {})}
    for name in required:
        properties.setdefault(name, True)
    for name, value in properties.items():
        if value is not False or name in required:
            yield name, value, name in required


def is_open(schema: Schema) -> bool:
    return not any(members(schema)) and schema.get("additionalProperties") is not False


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def _named_types(types: Any) -> frozenset[str]:
    names = types if isinstance(types, list) else [types]
    kinds = TYPES.intersection(name for name in names if isinstance(name, str))
    if "number" in kinds:
        kinds |= {"integer"}
    return kinds or TYPES
