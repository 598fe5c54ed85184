"""Texts to token ids, refusing early what is far longer than a limit.

A text that may fit is encoded in one go, so its ids are those of the tokenizer. Of a text that is
very long, pieces are encoded first, until there are twice as many tokens as the limit: pieces have
a few more tokens than the whole where it was cut, never twice as many.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from omlx.errors import BadRequest

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

MAX_TOKENS: Final = 1 << 20
"""Limit for a text whose model has none that is known."""
PIECE: Final = 1 << 16
"""Characters."""
_USUAL: Final = 4
"""Characters of a token: a text with fewer for each token of the limit is encoded in one go."""
_CERTAIN: Final = 2
_SPACES: Final = re.compile(r"\s+")


def encode(
    tokenizer: TokenizerWrapper,
    text: str,
    limit: int = MAX_TOKENS,
    *,
    special: bool = True,
    param: str = "messages",
) -> list[int]:
    """Return the ids of a text; `special` adds the model's leading tokens, but no second begin
    token to a text that has one, as from a client that applies the chat template itself.

    `limit` in tokens; a text that slightly exceeds it is not refused here. Raises BadRequest about
    the field `param`.
    """
    check_length(tokenizer, text, limit, param)
    ids = [int(token) for token in tokenizer.encode(text, add_special_tokens=special)]
    begin = tokenizer.bos_token_id
    doubled = special and begin is not None and ids[:2] == [begin, begin]
    if doubled and text.startswith(tokenizer.bos_token):
        # The text may itself begin with two: one is the tokenizer's.
        return ids[1:]
    return ids


def check_length(tokenizer: TokenizerWrapper, text: str, limit: int, param: str) -> None:
    """Raise BadRequest if the text certainly has more tokens than the limit: its pieces have."""
    if len(text) <= max(PIECE, _USUAL * limit):
        return
    tokens = tokenizer._tokenizer.added_tokens_decoder.values()
    absorbs_spaces = any(token.lstrip or token.rstrip for token in tokens)
    counted = 0
    for start in range(0, len(text), PIECE):
        piece = text[start : start + PIECE]
        if absorbs_spaces:
            piece = _SPACES.sub(" ", piece)
        # Unknown characters in a row may be one token.
        counted += max(0, len(tokenizer.encode(piece, add_special_tokens=False)) - 1)
        if counted > _CERTAIN * limit:
            known = counted // _CERTAIN
            raise BadRequest("text.too_long", param=param, tokens=known, limit=limit)
