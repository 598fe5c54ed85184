"""Encoding of texts, streaming detokenization, and prompts for fill-in-the-middle models.

A text that may fit is encoded at once, so its ids are those of the tokenizer. A very long text is
first encoded in pieces, until they have twice as many tokens as the limit: pieces have a few more
tokens than the whole at each cut, never twice as many. Prompts are cut before special tokens, where
ids do not depend on the cut, and ids of earlier segments are kept.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import wraps
from threading import Lock
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

from omlx.errors import BadRequest

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

Tokenizer: TypeAlias = "TokenizerWrapper"
"""mlx-lm's tokenizer, imported with the first model."""

T = TypeVar("T")

MAX_TOKENS: Final = 1 << 20
"""Tokens — limit for a text if the model's own limit is unknown."""
PIECE: Final = 1 << 16
"""Characters — length of a piece of a very long text."""
_USUAL: Final = 4
"""Characters per token of the limit — shorter texts are encoded at once."""
_CERTAIN: Final = 2
_SPACES: Final = re.compile(r"\s+")
KEPT_CHARACTERS: Final = 2 << 20
"""Characters of a tokenizer's kept segments — some long conversations."""


def per_tokenizer(make: Callable[[Tokenizer], T]) -> Callable[[Tokenizer], T]:
    """Keep the results of `make` for as long as their tokenizers live. Thread-safe.

    Two threads may at worst compute the same result; both get one of them.
    """
    known: WeakKeyDictionary[Tokenizer, T] = WeakKeyDictionary()

    @wraps(make)
    def result(tokenizer: Tokenizer) -> T:
        if tokenizer not in known:
            known.setdefault(tokenizer, make(tokenizer))
        return known[tokenizer]

    return result


def encode(
    tokenizer: Tokenizer,
    text: str,
    limit: int = MAX_TOKENS,
    *,
    special: bool = True,
    param: str = "messages",
) -> list[int]:
    """Return the ids of a text.

    `special` adds the model's leading tokens, but no second begin token to a text that has a begin
    token, as from clients that apply the chat template. `limit` in tokens; a slightly longer text
    is not refused here. Raises BadRequest about the field `param`.
    """
    check_length(tokenizer, text, limit, param)
    if not special:
        return _segments(tokenizer).encode(tokenizer, text)
    ids = [int(token) for token in tokenizer.encode(text, add_special_tokens=special)]
    begin = tokenizer.bos_token_id
    doubled = begin is not None and ids[:2] == [begin, begin]
    if doubled and text.startswith(tokenizer.bos_token):
        # A text may itself begin with two begin tokens: only the tokenizer's is removed.
        return ids[1:]
    return ids


def check_length(tokenizer: Tokenizer, text: str, limit: int, param: str) -> None:
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


class Segments:
    """Ids of texts between special tokens, the newest of one tokenizer. Thread-safe.

    A conversation repeats its earlier turns: only segments that are new are encoded.
    """

    def __init__(self, border: re.Pattern[str] | None) -> None:
        self._border = border
        self._ids: OrderedDict[str, tuple[int, ...]] = OrderedDict()
        self._characters = 0
        self._lock = Lock()

    def encode(self, tokenizer: Tokenizer, text: str) -> list[int]:
        """Return the ids of a text without leading tokens of the model."""
        ids: list[int] = []
        for segment in self._split(text):
            with self._lock:
                known = self._ids.get(segment)
            if known is None:
                encoded = tokenizer.encode(segment, add_special_tokens=False)
                known = tuple(int(token) for token in encoded)
            self._keep(segment, known)
            ids += known
        return ids

    def _split(self, text: str) -> Iterator[str]:
        start = 0
        for border in self._border.finditer(text) if self._border is not None else ():
            if border.start() > start:
                yield text[start : border.start()]
                start = border.start()
        yield text[start:]

    def _keep(self, segment: str, ids: tuple[int, ...]) -> None:
        with self._lock:
            if segment not in self._ids:
                self._ids[segment] = ids
                self._characters += len(segment)
            self._ids.move_to_end(segment)
            while self._characters > KEPT_CHARACTERS:
                self._characters -= len(self._ids.popitem(last=False)[0])


def _border(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Return a pattern of special tokens of the chat template; None: texts are not cut.

    A fast tokenizer first finds special tokens in the text, the leftmost and longest, then encodes
    what is between them. So ids do not depend on a cut before one, unless an earlier token reaches
    into it or one of both reads the characters beside it.
    """
    # Imported with the first tokenizer: slow.
    from transformers import PreTrainedTokenizerBase  # noqa: PLC0415

    inner = tokenizer._tokenizer
    if not inner.is_fast or type(inner).encode is not PreTrainedTokenizerBase.encode:
        return None
    if inner.split_special_tokens:
        return None
    added = [one for one in inner.added_tokens_decoder.values() if not one.normalized]
    texts, template = [one.content for one in added], str(tokenizer.chat_template)
    looking = [one for one in added if one.lstrip or one.single_word]
    borders = [
        re.escape(one.content)
        for one in added
        if one.content in template
        and not re.match(r"\w", one.content)
        and not any(_reaches_into(text, one.content) for text in texts)
        and not any(own.content.startswith(one.content) for own in looking)
    ]
    return re.compile("|".join(borders)) if borders else None


_segments: Final = per_tokenizer(lambda tokenizer: Segments(_border(tokenizer)))


def _reaches_into(text: str, token: str) -> bool:
    """Whether `text` can begin before `token` and end within or behind `token`."""
    ends = range(1, min(len(text), len(token) + 1))
    return token in text[1:] or any(text.endswith(token[:length]) for length in ends)


class Detokenizer:
    """Stream of the text of an output.

    `context`, tokens before the output, is read first and not returned: thus the first space of a
    continued message is kept.
    """

    def __init__(self, tokenizer: Tokenizer, context: Iterable[int] = ()) -> None:
        self._stream = tokenizer.detokenizer
        self._pending = ""  # context text that the next token brings: a space
        for token in context:
            self.feed(token)
        ahead = copy(self._stream)
        ahead.finalize()
        pending = str(ahead.last_segment)
        if "\ufffd" not in pending:
            self._pending = pending

    def feed(self, token: int) -> str:
        self._stream.add_token(token)
        return self._segment()

    def finish(self) -> str:
        self._stream.finalize()
        return self._segment().rstrip("\ufffd")

    def _segment(self) -> str:
        text = str(self._stream.last_segment)
        if text and self._pending:
            text, self._pending = text.removeprefix(self._pending), ""
        return text


class TokenBytes:
    """Bytes of single tokens, as logprobs report them. A token may hold part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        # Imported with the first tokenizer: slow.
        from mlx_lm import tokenizer_utils  # noqa: PLC0415

        self._tokenizer = tokenizer
        self._spm: list[bytes] = []
        self._bpe: list[str] = []
        stream = tokenizer.detokenizer
        if isinstance(stream, tokenizer_utils.SPMStreamingDetokenizer):
            self._spm = stream.tokenmap
        if isinstance(stream, tokenizer_utils.BPEStreamingDetokenizer):
            self._bpe = stream.tokenmap

    def __call__(self, token: int) -> bytes:
        if token < len(self._spm):
            return self._spm[token].replace("\u2581".encode(), b" ")
        if token < len(self._bpe):
            return decode_byte_level(self._bpe[token])
        return str(self._tokenizer.decode([token])).encode()


def decode_byte_level(piece: str) -> bytes:
    """Decode the byte-level alphabet of GPT-2's BPE.

    Characters outside of the alphabet (special tokens) are encoded as UTF-8.
    """
    return b"".join(_BYTES.get(character) or character.encode() for character in piece)


def _byte_alphabet() -> dict[str, bytes]:
    """Return the byte of each character in GPT-2's byte-level alphabet."""
    # Printable characters are their own bytes; other bytes, in order, are characters from U+0100.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {chr(byte): bytes([byte]) for byte in printable}
    return alphabet | {chr(0x100 + i): bytes([byte]) for i, byte in enumerate(others)}


_BYTES: Final = _byte_alphabet()


@dataclass(frozen=True, slots=True)
class InfillTokens:
    prefix: str
    suffix: str
    middle: str | None  # None: the suffix comes first and the model continues the prefix

    @property
    def names(self) -> set[str]:
        return {self.prefix, self.suffix, self.middle or self.suffix}


INFILL_FAMILIES: Final = (
    InfillTokens("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    InfillTokens("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    InfillTokens("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
    InfillTokens("▁<PRE>", "▁<SUF>", "▁<MID>"),
    InfillTokens("[PREFIX]", "[SUFFIX]", None),
)


def infill_prompt(
    tokenizer: Tokenizer, before: str, after: str, limit: int = MAX_TOKENS
) -> tuple[int, ...]:
    """Return the tokens of an infilling prompt.

    Raises BadRequest if the model has no infilling tokens, and for a text far longer than `limit`
    tokens.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    families = (family for family in INFILL_FAMILIES if family.names <= vocabulary.keys())
    family = next(families, None)
    if family is None:
        raise BadRequest("request.no_gap", param="suffix")
    begin = tokenizer.encode("")
    head = begin if begin == [tokenizer.bos_token_id] else []
    prefix = [vocabulary[family.prefix], *encode(tokenizer, before, limit, special=False)]
    suffix = [vocabulary[family.suffix], *encode(tokenizer, after, limit, special=False)]
    if family.middle is None:
        return (*head, *suffix, *prefix)
    return (*head, *prefix, *suffix, vocabulary[family.middle])


def infill_token_ids(tokenizer: Tokenizer) -> frozenset[int]:
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    # Infilling tokens end an infilled text.
    names = set[str]().union(*(family.names for family in INFILL_FAMILIES))
    return frozenset(vocabulary[name] for name in names if name in vocabulary)
