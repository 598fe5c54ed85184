"""The table of settings.

A field of the pydantic model `Settings` is a setting: its annotation is its type, its default the
built-in value, `Meta` the rest. Flags (`--max-waiting`), variables (`OMLX_MAX_WAITING`), the files'
keys (`engine.max_waiting`), help (`settings.max_waiting.help` in the catalog) and docs/settings.md
derive from the table. None means that the model's own files decide, or nothing does.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin

from annotated_types import Ge, GroupedMetadata, Le
from pydantic import BaseModel, ConfigDict, Field

from omlx.catalog import sentence
from omlx.draft_length import MAX_DRAFT_LENGTH
from omlx.settings.types import (
    PAIR,
    SERVER,
    Folder,
    Folders,
    Form,
    KVBits,
    Origins,
    Pairs,
    Paragraphs,
    Secret,
    Size,
    SizeOrOff,
    TemplateVariables,
    Text,
    Texts,
    ToolServers,
    WebAddress,
)

Value: TypeAlias = (
    "str | int | float | bool | Path | tuple[str, ...] | tuple[Path, ...] | dict[str, Any] | None"
)


class AppliesAt(StrEnum):
    """Moment when a changed value applies: next request, next idle moment, or next start."""

    AT_ONCE = "at_once"
    RELOAD = "reload"
    RESTART = "restart"


class Group(StrEnum):
    """Chapter of a setting in help and documents."""

    SERVER = "server"
    MODELS = "models"
    POOL = "pool"
    SPECULATION = "speculation"
    SAMPLING = "sampling"
    ENGINE = "engine"

    @property
    def section(self) -> str:
        """Path of this group in config.json, from the top of the file."""
        return _SECTIONS[self]


_SECTIONS = {
    Group.SERVER: "server",
    Group.MODELS: "models",
    Group.POOL: "pool",
    Group.SPECULATION: "defaults.speculative",
    Group.SAMPLING: "defaults.sampling",
    Group.ENGINE: "engine",
}


class Scope(StrEnum):
    """Place where a user may set a setting."""

    CLI = "cli"
    ENVIRONMENT = "environment"
    GLOBAL = "global"
    MODEL = "model"
    PROFILE = "profile"
    REQUEST = "request"


RUN = frozenset({Scope.CLI, Scope.ENVIRONMENT})
STORED = RUN | {Scope.GLOBAL}
PER_MODEL = STORED | {Scope.MODEL}
PER_REQUEST = STORED | {Scope.REQUEST}
PER_LOAD = PER_MODEL | PER_REQUEST
"""Scopes with a request's but without a profile's: a profile could force a reload of the model."""
EVERYWHERE = PER_LOAD | {Scope.PROFILE}
MODEL_ALONE = frozenset({Scope.MODEL})
PROFILE_ALONE = frozenset({Scope.PROFILE})

STRICT: Final = "strict"
"""Value of `exactness` whose answers equal plain decoding alone, bit by bit."""


@dataclass(frozen=True, slots=True)
class Meta(GroupedMetadata):
    """Facts beyond the annotation. `low` and `high` are inclusive; every number has both."""

    group: Group
    metavar: str = ""
    applies: AppliesAt = AppliesAt.RESTART
    scopes: frozenset[Scope] = STORED
    low: float = 0
    high: float = 0

    def __iter__(self) -> Iterator[object]:
        if self.low < self.high:
            yield Ge(self.low)
            yield Le(self.high)


_server = partial(Meta, Group.SERVER)
_models = partial(Meta, Group.MODELS)
_pool = partial(Meta, Group.POOL, applies=AppliesAt.AT_ONCE)
_speculation = partial(Meta, Group.SPECULATION, applies=AppliesAt.RELOAD, scopes=EVERYWHERE)
_tokens = partial(_speculation, low=1, high=MAX_DRAFT_LENGTH)
_sampling = partial(Meta, Group.SAMPLING, applies=AppliesAt.AT_ONCE, scopes=EVERYWHERE)
_engine = partial(Meta, Group.ENGINE, applies=AppliesAt.RELOAD)


class Settings(BaseModel):
    """A value for every setting. Made by `resolve`, or directly in tests."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    host: Annotated[Text, _server("HOST")] = "127.0.0.1"
    port: Annotated[int, _server(low=0, high=65535)] = 8000
    api_key: Annotated[Secret | None, _server("KEY", AppliesAt.AT_ONCE)] = None
    tls_cert: Annotated[Folder | None, _server("FILE")] = None
    tls_key: Annotated[Folder | None, _server("FILE")] = None
    allow_host: Annotated[Texts, _server("HOST")] = ()
    allow_origin: Annotated[Origins, _server("ORIGIN")] = ()
    allow_image_url: Annotated[bool, _server()] = False
    mcp_server: Annotated[ToolServers, _server(SERVER, AppliesAt.AT_ONCE)] = ()
    web_search: Annotated[WebAddress | None, _server("URL", AppliesAt.AT_ONCE)] = None
    web_search_key: Annotated[Secret | None, _server("KEY", AppliesAt.AT_ONCE)] = None
    api_tools: Annotated[Literal["off", "own", "all"], _server(applies=AppliesAt.AT_ONCE)] = "off"
    chat_store: Annotated[bool, _server(applies=AppliesAt.AT_ONCE)] = False
    record_prompts: Annotated[bool, _server(applies=AppliesAt.AT_ONCE)] = False
    answer_disk: Annotated[SizeOrOff, _server("SIZE|off", low=0, high=1 << 44)] = 256 << 20
    answer_days: Annotated[int, _server(low=1, high=3660)] = 30
    keep_awake: Annotated[bool, _server(applies=AppliesAt.AT_ONCE)] = True
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _server()] = "info"

    home: Annotated[Folder, _models("DIR", scopes=RUN)] = Field(
        default_factory=lambda: Path(os.path.expanduser("~/.omlx"))  # relative without a user's
    )
    model_dir: Annotated[Folders, _models("DIR")] = ()
    home_models: Annotated[bool, _models()] = True
    lmstudio: Annotated[bool, _models()] = True
    hf_cache: Annotated[bool, _models()] = True
    bundled: Annotated[bool, _models()] = True
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], _models(applies=AppliesAt.RELOAD)
    ] = "auto"
    model_map: Annotated[Pairs, _models(PAIR, AppliesAt.AT_ONCE)] = ()

    default_model: Annotated[Text | None, _pool("NAME")] = None
    fallback_model: Annotated[Text | None, _pool("NAME")] = None
    memory_limit: Annotated[Size | None, _pool("SIZE", low=1 << 20, high=1 << 50)] = None
    wired_limit: Annotated[
        SizeOrOff | None, _pool("SIZE|off", applies=AppliesAt.RESTART, high=1 << 50)
    ] = None
    ttl_seconds: Annotated[int | None, _pool(scopes=PER_MODEL, low=1, high=366 * 86400)] = None
    pinned: Annotated[bool, _pool(scopes=MODEL_ALONE)] = False
    alias: Annotated[Text | None, _pool("NAME", scopes=MODEL_ALONE)] = None
    trust_remote_code: Annotated[
        bool, _pool(applies=AppliesAt.RELOAD, scopes=MODEL_ALONE | {Scope.CLI})
    ] = False
    library: Annotated[
        Literal["auto", "mlx-lm", "mlx-vlm"], _pool(applies=AppliesAt.RELOAD, scopes=PER_MODEL)
    ] = "auto"
    vision: Annotated[bool, _pool(applies=AppliesAt.RELOAD, scopes=PER_MODEL)] = True

    speculation: Annotated[Text, _speculation("STRATEGY")] = "auto"
    draft_model: Annotated[Text | None, _speculation("NAME", scopes=PER_LOAD)] = None
    num_draft_tokens: Annotated[int | None, _tokens()] = None
    draft_initial: Annotated[int | None, _tokens(scopes=PER_MODEL)] = None
    draft_min: Annotated[int | None, _tokens()] = None
    draft_max: Annotated[int | None, _tokens()] = None
    draft_download: Annotated[Literal["ask", "auto", "never"], _speculation(scopes=PER_MODEL)] = (
        "ask"
    )
    no_draft: Annotated[bool, _speculation(applies=AppliesAt.RESTART, scopes=RUN)] = False

    temperature: Annotated[float | None, _sampling(low=0, high=2)] = None
    top_p: Annotated[float | None, _sampling(low=0, high=1)] = None
    top_k: Annotated[int | None, _sampling(low=0, high=1_000_000)] = None
    min_p: Annotated[float | None, _sampling(low=0, high=1)] = None
    xtc_probability: Annotated[float | None, _sampling(low=0, high=1)] = None
    xtc_threshold: Annotated[float | None, _sampling(low=0, high=1)] = None
    repetition_penalty: Annotated[float | None, _sampling(low=0.01, high=10)] = None
    presence_penalty: Annotated[float | None, _sampling(low=-2, high=2)] = None
    frequency_penalty: Annotated[float | None, _sampling(low=-2, high=2)] = None
    max_tokens: Annotated[int | None, _sampling(low=1, high=1 << 30)] = None
    thinking_budget: Annotated[int | None, _sampling(low=0, high=1 << 30)] = None
    chat_template_kwargs: Annotated[TemplateVariables | None, _sampling()] = None
    system_prompt: Annotated[Paragraphs | None, _sampling(scopes=PROFILE_ALONE)] = None

    exactness: Annotated[Literal["ties", "strict"], _engine(scopes=PER_MODEL)] = "ties"
    receipt: Annotated[bool, _engine(applies=AppliesAt.AT_ONCE, scopes=EVERYWHERE)] = False
    kv_bits: Annotated[KVBits, _engine(scopes=PER_MODEL)] = "off"
    max_concurrent_requests: Annotated[int, _engine(low=1, high=256)] = 8
    max_waiting: Annotated[int, _engine(low=0, high=65536)] = 512
    max_context: Annotated[int | None, _engine(scopes=PER_MODEL, low=16, high=1 << 30)] = None
    prefill_chunk: Annotated[int, _engine(low=16, high=65536)] = 2048
    prefill_pause: Annotated[int, _engine(low=10, high=60_000)] = 200
    calibrate: Annotated[bool, _engine(applies=AppliesAt.RESTART)] = True
    keep_warm: Annotated[bool, _engine(applies=AppliesAt.RESTART)] = True
    prefix_bytes: Annotated[
        Size | None, _engine("SIZE", applies=AppliesAt.AT_ONCE, high=1 << 44)
    ] = None
    prefix_disk: Annotated[
        SizeOrOff | None, _engine("SIZE|off", applies=AppliesAt.RESTART, high=1 << 50)
    ] = None
    prefix_dir: Annotated[Folder | None, _engine("DIR", applies=AppliesAt.RESTART)] = None
    prewarm: Annotated[Literal["mains", "always", "off"], _engine(applies=AppliesAt.AT_ONCE)] = (
        "mains"
    )

    @property
    def kv_number_bits(self) -> int | None:
        """Bits of a number in quantized KV caches, None without quantization."""
        return None if self.kv_bits == "off" else int(self.kv_bits)


@dataclass(frozen=True, slots=True)
class Setting:
    """Row of the table, derived from a field of `Settings`; `kind` is the type of one value."""

    name: str
    kind: type[str] | type[int] | type[float] | type[bool] | type[Path] | type[dict[str, Any]]
    form: Form
    default: Value
    meta: Meta
    choices: tuple[str, ...] = ()

    @property
    def repeatable(self) -> bool:
        return self.form in (Form.LINES, Form.MAP)

    @property
    def flag(self) -> str:
        """Flag that changes the value: `--no-…` for a switch that is on by default."""
        dashed = self.name.replace("_", "-")
        return f"--no-{dashed}" if self.default is True else f"--{dashed}"

    @property
    def variable(self) -> str:
        return f"OMLX_{self.name.upper()}"

    @property
    def path(self) -> str:
        """Path in config.json. Its last two parts are the path in a section of models.json."""
        return f"{self.meta.group.section}.{self.name}"

    @property
    def help_key(self) -> str:
        return f"settings.{self.name}.help"

    @property
    def help(self) -> str:
        return sentence(self.help_key, {})

    def allowed_in(self, scope: Scope) -> bool:
        return scope in self.meta.scopes

    @property
    def applies_live(self) -> bool:
        """Whether a running server applies a change of the files.

        Secrets are excluded: a lost file must not remove a key.
        """
        return self.meta.applies is not AppliesAt.RESTART and self.form is not Form.SECRET


_FORMS: Final[dict[Any, Form]] = {
    bool: Form.SWITCH,
    int: Form.NUMBER,
    float: Form.NUMBER,
    dict: Form.OBJECT,
}
"""Forms of types without a `Form` of their own; other types are text."""


@cache
def table() -> dict[str, Setting]:
    """Return every setting by name, in the order of `Settings`."""
    rows = {}
    for name, item in Settings.model_fields.items():
        kind, marks = _one_value(item.annotation)
        marks += item.metadata
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        form = Form.CHOICE if choices else _FORMS.get(kind, Form.TEXT)
        form = next((mark for mark in marks if isinstance(mark, Form)), form)
        meta = next(mark for mark in marks if isinstance(mark, Meta))
        default = item.get_default(call_default_factory=True)
        rows[name] = Setting(name, str if choices else kind, form, default, meta, choices)
    return rows


def _one_value(annotation: Any) -> tuple[Any, list[Any]]:
    """Return the type of a single value, without None and tuple, and its metadata."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is dict:
        return dict, []
    if origin is None or origin is Literal:
        return annotation, []
    kind, marks = _one_value(arguments[0])
    return kind, marks + list(arguments[1:])
