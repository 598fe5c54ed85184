"""Fields shared by bodies of Ollama's API: model name, options, keep-alive time."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field

from omlx.errors import Reason
from omlx.server.http.errors import field_error
from omlx.server.request.fields import Body, SamplingFields, Stops


def iso(seconds: float) -> str:
    """Format `seconds` since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


RANDOM_SEED: Final = -1
MAX_KEEP_S: Final = 366 * 86400
"""Seconds — longer durations keep the model indefinitely."""
_UNIT_S: Final = {
    "ns": 1e-9,
    "us": 1e-6,
    "µs": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "h": 3600.0,
}
_PART: Final = re.compile(rf"(\d{{1,12}}(?:\.\d{{0,12}})?)({'|'.join(_UNIT_S)})", re.ASCII)
_UNUSED: Final[dict[str, tuple[object, ...]]] = {
    "mirostat": (0,),
    "num_keep": (0,),
    "tfs_z": (1,),
    "typical_p": (1,),
}
"""Options without effect here, each with the values that request nothing."""
_SHOWN, _SHOWN_LENGTH = 20, 40
"""Unused options named in a warning, and characters of each."""


def _whole(value: Any) -> Any:
    """Convert whole numbers written as `1.0`, as some programs do."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


Whole = Annotated[int, BeforeValidator(_whole)]


class Named(Body):
    """A body with a model name; older programs send `name`."""

    model: str | None = None
    name: str | None = None

    @property
    def id(self) -> str | None:
        """Model name; None for the default model."""
        return self.model or self.name or None


class Options(SamplingFields):
    """Ollama's options, and this server's for drafts."""

    seed: Annotated[Whole, Field(ge=-(2**63), lt=2**64)] | None = None
    top_k: Annotated[Whole, Field(ge=-1)] | None = None
    num_predict: Whole | None = None
    num_ctx: Whole | None = None
    repeat_penalty: Annotated[float, Field(ge=0, le=10)] | None = None
    stop: str | Stops | None = None

    @property
    def sampling(self) -> dict[str, float]:
        values = super().sampling
        if self.repeat_penalty:
            values["repetition_penalty"] = self.repeat_penalty
        return values

    @property
    def max_tokens(self) -> int | None:
        """Token limit; None without limit (programs send 0, -1 or -2)."""
        if self.num_predict is None or self.num_predict <= 0:
            return None
        return self.num_predict


class Configured(Named):
    """A body with options and a keep-alive time."""

    options: Options | None = None
    keep_alive: float | str | None = None

    @property
    def given(self) -> Options:
        return self.options or Options()

    @property
    def keep_s(self) -> float | None:
        """Idle seconds before the model is unloaded: infinity never, None as configured.

        Raises BadRequest for an invalid duration.
        """
        if self.keep_alive is None:
            return None
        seconds = duration_s(self.keep_alive)
        return seconds if 0 <= seconds <= MAX_KEEP_S else math.inf

    def option_warnings(self) -> tuple[Reason, ...]:
        given = (self.given.model_extra or {}).items()
        unused = [name for name, value in given if value not in (None, *_UNUSED.get(name, ()))]
        if not unused:
            return ()
        names = ", ".join(f"options.{name[:_SHOWN_LENGTH]}" for name in unused[:_SHOWN])
        return (Reason("ollama.options", {"fields": names, "count": len(unused)}),)


def duration_s(value: float | str) -> float:
    """Return a duration in seconds from a number or a text such as `5m`, `1h30m`, `-1`.

    Raises BadRequest.
    """
    if not isinstance(value, str):
        return value
    signed = value.strip()
    text = signed[1:] if signed[:1] in ("-", "+") else signed
    parts = _PART.findall(text)
    if text.isascii() and text.isdigit() and len(text) <= _SHOWN:
        seconds = float(text)
    elif parts and _PART.sub("", text) == "":
        seconds = sum(float(number) * _UNIT_S[unit] for number, unit in parts)
    else:
        raise field_error("request.value", "keep_alive", expected='number, "5m", "1h30m"')
    return -seconds if signed.startswith("-") else seconds
