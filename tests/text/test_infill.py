from __future__ import annotations

from pathlib import Path

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from omlx.errors import BadRequest
from omlx.text.tokens import INFILL_FAMILIES, InfillTokens, infill_prompt, infill_token_ids
from tests.text.tokenizers import SPECIAL, decode_byte_level


def tokens_of(gap: InfillTokens) -> tuple[str, ...]:
    return tuple(name for name in (gap.prefix, gap.suffix, gap.middle) if name is not None)


@pytest.mark.parametrize("gap", INFILL_FAMILIES, ids=lambda gap: gap.prefix)
def test_each_family_of_tokens(tmp_path: Path, gap: InfillTokens) -> None:
    tokenizer = decode_byte_level(tmp_path, special=(*SPECIAL, *tokens_of(gap)))
    said = tokenizer.decode(infill_prompt(tokenizer, "def f(", "return 1"))
    if gap.middle is None:
        assert said == f"{gap.suffix}return 1{gap.prefix}def f("
    else:
        assert said == f"{gap.prefix}def f({gap.suffix}return 1{gap.middle}"
    assert {tokenizer.decode([each]) for each in infill_token_ids(tokenizer)} == set(tokens_of(gap))


def test_a_model_without_them(bpe: TokenizerWrapper) -> None:
    with pytest.raises(BadRequest) as caught:
        infill_prompt(bpe, "a", "b")
    assert (caught.value.code, caught.value.param) == ("request.no_gap", "suffix")
    assert infill_token_ids(bpe) == frozenset()
