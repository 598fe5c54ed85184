from __future__ import annotations

import pytest

from omlx.errors import ConfigError
from omlx.settings.origins import allows
from omlx.settings.parse import parse
from omlx.settings.schema import table


def origins(*texts: str) -> tuple[str, ...]:
    value = parse(table()["allow_origin"], texts, "--allow-origin")
    assert isinstance(value, tuple)
    return tuple(str(origin) for origin in value)


@pytest.mark.parametrize(
    ("pattern", "allowed", "refused"),
    [
        ("*", ["http://a.example", "null", "app://x"], []),
        ("null", ["null"], ["http://null"]),
        ("app://*", ["app://obsidian.md", "APP://x"], ["app:x", "http://app", "xapp://x"]),
        ("http://localhost:*", ["http://localhost:5173", "http://localhost"], ["https://localhost:1"]),
        (
            "http://localhost:*",
            [],
            [f"http://localhost{end}" for end in (".evil.example:80", ":1.evil", ":1@evil")],
        ),
        ("http://[::1]:*", ["http://[::1]:80"], ["http://[::2]:80"]),
        ("https://App.example/", ["https://app.example"], ["https://app.example:8"]),
        ("http://app.example:80", ["http://app.example:80"], ["http://app.example:800"]),
    ],
)  # fmt: skip
def test_origins_and_their_patterns(pattern: str, allowed: list[str], refused: list[str]) -> None:
    patterns = origins(pattern)
    assert [origin for origin in allowed if not allows(patterns, origin)] == []
    assert [origin for origin in refused if allows(patterns, origin)] == []


@pytest.mark.parametrize(
    "text",
    [
        "app.example",
        "https://*.example.com",
        "http://localhost*",
        "http://localhost:5*",
        "*://localhost",
        "http://app.example/path",
        "http://app.example?x",
        "http://",
        "app:*",
        "http://user@app.example",
    ],
)
def test_a_pattern_that_would_match_nothing_or_too_much_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        origins(text)
    assert (caught.value.code, caught.value.params["value"]) == ("config.origin", text)
    assert "--allow-origin" in caught.value.message
