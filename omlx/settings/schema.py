"""The table of settings.

A field of `Settings` is a setting: its annotation is its type, its default the built-in value,
`Meta` the rest. Flags (`--max-waiting`), variables (`OMLX_MAX_WAITING`), the files' keys
(`engine.max_waiting`), help (`settings.max_waiting.help` in the catalog) and docs/settings.md
derive from it. None means that the model's own files decide, or nothing does.
"""

from __future__ import annotations

import os
import types
from dataclasses import MISSING, dataclass, field, fields
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from omlx.catalog import sentence
from omlx.draft_length import MAX_DRAFT_LENGTH

Value: TypeAlias = (
    "str | int | float | bool | Path | tuple[str, ...] | tuple[Path, ...] | dict[str, Any] | None"
)


class AppliesAt(StrEnum):
    """When a changed value applies: to the next request, at the next idle moment, or at the next
    start.
    """

    AT_ONCE = "at_once"
    RELOAD = "reload"
    RESTART = "restart"


class Group(StrEnum):
    """The chapter of help and documents that a setting belongs to."""

    SERVER = "server"
    MODELS = "models"
    POOL = "pool"
    SPECULATION = "speculation"
    SAMPLING = "sampling"
    ENGINE = "engine"

    @property
    def section(self) -> str:
        """Where config.json keeps this group, from the top of the file."""
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
    """Where a person may set a setting."""

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
"""A request may have it, a profile may not: the model could have to be loaded again for it."""
EVERYWHERE = PER_LOAD | {Scope.PROFILE}
MODEL_ALONE = frozenset({Scope.MODEL})

STRICT: Final = "strict"
"""The value of `exactness` with which answers are those of plain decoding alone, bit by bit."""

RENDERER_ARGUMENTS: Final = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "kwargs",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "sanitize_control_tokens",
        "self",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)
"""Names that the renderer of chat templates takes itself: no template variable can have them."""


@dataclass(frozen=True, slots=True)
class Meta:
    """What the annotation does not say. `low` and `high` are inclusive; every number has both.

    `reserved` are the keys that a JSON object must not have. A `secret` is sent in a header.
    """

    group: Group
    applies: AppliesAt = AppliesAt.RESTART
    scopes: frozenset[Scope] = STORED
    low: float = 0
    high: float = 0
    metavar: str = ""
    secret: bool = False
    is_bytes: bool = False
    reserved: frozenset[str] = frozenset()


def _server(metavar: str = "", **more: Any) -> Meta:
    return Meta(Group.SERVER, more.pop("applies", AppliesAt.RESTART), metavar=metavar, **more)


def _models(metavar: str = "", **more: Any) -> Meta:
    return Meta(Group.MODELS, metavar=metavar, **more)


def _pool(metavar: str = "", **more: Any) -> Meta:
    return Meta(Group.POOL, more.pop("applies", AppliesAt.AT_ONCE), metavar=metavar, **more)


def _speculation(metavar: str = "", scopes: frozenset[Scope] = EVERYWHERE, **more: Any) -> Meta:
    return Meta(
        Group.SPECULATION, more.pop("applies", AppliesAt.RELOAD), scopes, metavar=metavar, **more
    )


def _tokens(scopes: frozenset[Scope] = PER_MODEL) -> Meta:
    return _speculation(scopes=scopes, low=1, high=MAX_DRAFT_LENGTH)


def _sampling(low: float, high: float) -> Meta:
    return Meta(Group.SAMPLING, AppliesAt.AT_ONCE, EVERYWHERE, low, high)


def _engine(low: float, high: float, **more: Any) -> Meta:
    return Meta(Group.ENGINE, more.pop("applies", AppliesAt.RELOAD), low=low, high=high, **more)


def _home() -> Path:
    """Return `~/.omlx`; a relative path where the user's folder is unknown."""
    return Path(os.path.expanduser("~/.omlx"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One value for every setting. Made by `resolve`, or directly in tests."""

    host: Annotated[str, _server("HOST")] = "127.0.0.1"
    port: Annotated[int, _server(low=0, high=65535)] = 8000
    api_key: Annotated[str | None, _server("KEY", secret=True, applies=AppliesAt.AT_ONCE)] = None
    allow_host: Annotated[tuple[str, ...], _server("HOST")] = ()
    allow_origin: Annotated[tuple[str, ...], _server("ORIGIN")] = ()
    allow_image_url: Annotated[bool, _server()] = False
    record_prompts: Annotated[bool, _server(applies=AppliesAt.AT_ONCE)] = False
    answer_disk: Annotated[int, _server("SIZE|off", low=0, high=1 << 44, is_bytes=True)] = 256 << 20
    answer_days: Annotated[int, _server(low=1, high=3660)] = 30
    keep_awake: Annotated[bool, _server(applies=AppliesAt.AT_ONCE)] = True
    log_level: Annotated[Literal["debug", "info", "warning", "error"], _server()] = "info"

    home: Annotated[Path, _models("DIR", scopes=RUN)] = field(default_factory=_home)
    model_dir: Annotated[tuple[Path, ...], _models("DIR")] = ()
    home_models: Annotated[bool, _models()] = True
    lmstudio: Annotated[bool, _models()] = True
    hf_cache: Annotated[bool, _models()] = True
    bundled: Annotated[bool, _models()] = True
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], _models(applies=AppliesAt.RELOAD)
    ] = "auto"

    model_map: Annotated[tuple[str, ...], _models("PATTERN=MODEL", applies=AppliesAt.AT_ONCE)] = ()

    default_model: Annotated[str | None, _pool("NAME")] = None
    memory_limit: Annotated[int | None, _pool("SIZE", low=1 << 20, high=1 << 50, is_bytes=True)] = (
        None
    )
    wired_limit: Annotated[
        int | None,
        _pool("SIZE|off", high=1 << 50, is_bytes=True, applies=AppliesAt.RESTART),
    ] = None
    ttl_seconds: Annotated[int | None, _pool(scopes=PER_MODEL, low=1, high=366 * 86400)] = None
    pinned: Annotated[bool, _pool(scopes=MODEL_ALONE)] = False
    alias: Annotated[str | None, _pool("NAME", scopes=MODEL_ALONE)] = None
    trust_remote_code: Annotated[
        bool, _pool(scopes=MODEL_ALONE | {Scope.CLI}, applies=AppliesAt.RELOAD)
    ] = False

    vision: Annotated[bool, _pool(scopes=PER_MODEL, applies=AppliesAt.RELOAD)] = True

    speculation: Annotated[str, _speculation("STRATEGY")] = "auto"
    draft_model: Annotated[str | None, _speculation("NAME", PER_LOAD)] = None
    num_draft_tokens: Annotated[int | None, _tokens(EVERYWHERE)] = None
    draft_initial: Annotated[int | None, _tokens()] = None
    draft_min: Annotated[int | None, _tokens(EVERYWHERE)] = None
    draft_max: Annotated[int | None, _tokens(EVERYWHERE)] = None
    draft_download: Annotated[Literal["ask", "auto", "never"], _speculation(scopes=PER_MODEL)] = (
        "ask"
    )
    no_draft: Annotated[bool, _speculation(scopes=RUN, applies=AppliesAt.RESTART)] = False

    temperature: Annotated[float | None, _sampling(0, 2)] = None
    top_p: Annotated[float | None, _sampling(0, 1)] = None
    top_k: Annotated[int | None, _sampling(0, 1_000_000)] = None
    min_p: Annotated[float | None, _sampling(0, 1)] = None
    repetition_penalty: Annotated[float | None, _sampling(0.01, 10)] = None
    presence_penalty: Annotated[float | None, _sampling(-2, 2)] = None
    frequency_penalty: Annotated[float | None, _sampling(-2, 2)] = None
    max_tokens: Annotated[int | None, _sampling(1, 1 << 30)] = None
    thinking_budget: Annotated[int | None, _sampling(0, 1 << 30)] = None
    chat_template_kwargs: Annotated[
        dict[str, Any] | None,
        Meta(Group.SAMPLING, AppliesAt.AT_ONCE, EVERYWHERE, reserved=RENDERER_ARGUMENTS),
    ] = None

    exactness: Annotated[Literal["ties", "strict"], _engine(0, 0, scopes=PER_MODEL)] = "ties"
    receipt: Annotated[bool, _engine(0, 0, scopes=EVERYWHERE, applies=AppliesAt.AT_ONCE)] = False
    max_concurrent_requests: Annotated[int, _engine(1, 256)] = 8
    max_waiting: Annotated[int, _engine(0, 65536)] = 512
    max_context: Annotated[int | None, _engine(16, 1 << 30, scopes=PER_MODEL)] = None
    prefill_chunk: Annotated[int, _engine(16, 65536)] = 2048
    calibrate: Annotated[bool, Meta(Group.ENGINE)] = True
    keep_warm: Annotated[bool, Meta(Group.ENGINE)] = True
    prefix_bytes: Annotated[
        int | None, _engine(0, 1 << 44, metavar="SIZE", is_bytes=True, applies=AppliesAt.AT_ONCE)
    ] = None
    prefix_disk: Annotated[
        int | None,
        _engine(0, 1 << 50, metavar="SIZE|off", is_bytes=True, applies=AppliesAt.RESTART),
    ] = None
    prefix_dir: Annotated[Path | None, Meta(Group.ENGINE, metavar="DIR")] = None
    prewarm: Annotated[Literal["mains", "always", "off"], Meta(Group.ENGINE, AppliesAt.AT_ONCE)] = (
        "mains"
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table, made of a field of `Settings`. `kind` is the type of one value."""

    name: str
    kind: type[str] | type[int] | type[float] | type[bool] | type[Path] | type[dict[str, Any]]
    default: Value
    meta: Meta
    choices: tuple[str, ...] = ()
    repeatable: bool = False

    @property
    def flag(self) -> str:
        """The flag that changes it; a switch that is on by default is turned off."""
        dashed = self.name.replace("_", "-")
        return f"--no-{dashed}" if self.default is True else f"--{dashed}"

    @property
    def variable(self) -> str:
        return f"OMLX_{self.name.upper()}"

    @property
    def path(self) -> str:
        """Its place in config.json; in models.json the last two parts are below the model's id."""
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
    def may_be_off(self) -> bool:
        """Whether "off" is a way to write a size of 0."""
        return self.meta.metavar.endswith("|off")

    @property
    def is_mapping(self) -> bool:
        """Whether its values are pairs `PATTERN=MODEL`."""
        return "=" in self.meta.metavar

    @property
    def is_origin(self) -> bool:
        """Whether its values are patterns of web origins."""
        return self.meta.metavar == "ORIGIN"

    @property
    def applies_live(self) -> bool:
        """Whether a running server applies a change of the files.

        Secrets are excluded: a lost file must not remove a key.
        """
        return self.meta.applies is not AppliesAt.RESTART and not self.meta.secret


@cache
def table() -> dict[str, Setting]:
    """Every setting by name, in the order of `Settings`."""
    hints = get_type_hints(Settings, include_extras=True)
    rows = {}
    for item in fields(Settings):
        annotation, meta = get_args(hints[item.name])
        default: Any = item.default if item.default_factory is MISSING else item.default_factory()
        kind, choices, repeatable = _kind(annotation)
        rows[item.name] = Setting(item.name, kind, default, meta, choices, repeatable)
    return rows


def _kind(annotation: Any) -> tuple[Any, tuple[str, ...], bool]:
    """Return the type of one value, its choices, and whether it is repeatable."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _kind(next(kind for kind in arguments if kind is not type(None)))
    if origin is Literal:
        return str, arguments, False
    if origin is tuple:
        return arguments[0], (), True
    if origin is dict:
        return dict, (), False
    return annotation, (), False
