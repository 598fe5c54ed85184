from __future__ import annotations

from pathlib import Path

import pytest

from lab.fuzz.tokens import fuzz_family

REQUESTS = 24


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "falcon_h1"])
def test_answers_are_those_of_plain_decoding_alone(family: str, tmp_path: Path) -> None:
    """A small part of `make fuzz-tokens`."""
    outcome = fuzz_family(family, REQUESTS, salt=0, folder=tmp_path)
    assert outcome.statuses.keys() == {200}
    assert outcome.accepted > 0
    assert outcome.cached > 0
    assert outcome.differences == []
