from __future__ import annotations

from pathlib import Path

import pytest

from lab.fuzz.tokens import DRAFT, TRAINED, fuzz_family

REQUESTS = 24


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "drafter"),
    [(name, DRAFT) for name in ("llama", "gemma3_text", "falcon_h1")]
    + [pytest.param(*pair, marks=pytest.mark.needs_extra) for pair in TRAINED[::3]],
)
def test_answers_are_those_of_plain_decoding_alone(
    family: str, drafter: str, tmp_path: Path
) -> None:
    """A small part of `make fuzz-tokens`."""
    outcome = fuzz_family(family, REQUESTS, 0, tmp_path, drafter)
    assert outcome.statuses.keys() == {200}
    assert outcome.drafted > 0
    assert outcome.accepted > 0 or drafter != DRAFT
    assert outcome.cached > 0
    assert outcome.differences == []
