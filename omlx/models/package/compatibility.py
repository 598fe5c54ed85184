"""Whether one model can draft for another: its tokens must mean the same. Needs the tokenizers, not
the weights.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from omlx.engine.types import Reason
from omlx.errors import BadRequest, ModelError
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.places import HUB_CACHE
from omlx.models.catalog.reference import Reference, find_draft
from omlx.models.package.tokenizer import read_tokenizer

PROBE = (
    "def f(x):\n\treturn {'a': [1, 23, 4567], \"b\": x ** -0.5}  # why?\r\n\n"
    "Äpfel, naïve façade — «да», 中文字符, 日本語かな, 한국어, العربية 👩\u200d💻🙂 \u00a0end   \n"
)
"""Code, white space, digits, scripts and joined emoji: where tokenizers that look alike come apart.
"""


_INCOMPLETE = ("model.no_main", "model.no_config", "model.no_weights", "model.shards_missing")
"""What a folder of the hub's cache lacks while, or because, a download did not arrive."""


class Tokenizer(Protocol):
    """What is asked of a tokenizer. Nothing is modified."""

    @property
    def all_special_ids(self) -> Sequence[int]: ...

    @property
    def added_tokens_decoder(self) -> Mapping[int, object]: ...

    def get_vocab(self) -> Mapping[str, int]: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Sequence[int]: ...


def checkpoint_mismatch(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """Why `draft` cannot draft for `target`, as far as their files tell; None if nothing speaks
    against it.
    """
    if draft.path == target.path or draft.id == target.id:
        return Reason("draft.unfit.same_model", {"draft": draft.id})
    if draft.status is not Status.SKIPPED or draft.reason is None:
        return too_large(target, draft)
    match draft.reason.code:
        case "model.head_only":
            return Reason("draft.unfit.head_only", {"draft": draft.id, **draft.reason.params})
        case "model.gguf_only":
            return Reason("draft.unfit.gguf", {"draft": draft.id})
        case code if code == "model.half_download" or (
            draft.source == HUB_CACHE and code in _INCOMPLETE
        ):
            return Reason("draft.unfit.half_download", {"draft": draft.id})
        case _:
            return Reason("draft.unfit.unusable", {"draft": draft.id, "why": draft.reason.message})


def too_large(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """A draft that is read as slowly as the target gains nothing: the target's own weights, from
    whichever folder.
    """
    return (
        Reason("draft.unfit.not_smaller", {"draft": draft.id})
        if draft.size_bytes >= target.size_bytes > 0
        else None
    )


def tokenizer_mismatch(target: Tokenizer, draft: Tokenizer) -> Reason | None:
    """Why the tokens of these two do not mean the same; None if they do. Raises ModelError if one
    cannot tell.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        differing = len(ours.items() ^ theirs.items())
        return Reason(
            "draft.unfit.vocabulary",
            {"target": len(ours), "draft": len(theirs), "differing": differing},
        )
    differing = len(_special(target) ^ _special(draft))
    if differing:
        return Reason("draft.unfit.special_tokens", {"differing": differing})
    if _probed(target) != _probed(draft):
        return Reason("draft.unfit.probe")
    return None


def draft_mismatch(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """Why `draft` cannot draft for `target`, judged by files and tokenizers. Raises ModelError for
    broken ones.
    """
    reason = checkpoint_mismatch(target, draft)
    return reason or tokenizer_mismatch(read_tokenizer(target), read_tokenizer(draft))


def draft_problem(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """The same, of broken ones too."""
    try:
        return draft_mismatch(target, draft)
    except ModelError as error:
        return Reason("draft.unfit.unusable", {"draft": draft.id, "why": error.message})


def check_draft(name: str, target: ModelEntry | None, registry: Registry) -> None:
    """Raise BadRequest for what names no model, and for one that is here and cannot draft for
    `target`.
    """
    try:
        Reference.parse(name)
    except ModelError as error:
        raise BadRequest(error.code, param="draft_model", **error.params) from error
    found = find_draft(name, registry)
    reason = (
        checkpoint_mismatch(target, found)
        if target is not None and isinstance(found, ModelEntry)
        else None
    )
    if reason is not None:
        raise BadRequest(reason.code, param="draft_model", **reason.params)


def _probed(tokenizer: Tokenizer) -> list[int]:
    try:
        return list(tokenizer.encode(PROBE, add_special_tokens=False))
    except (
        Exception
    ) as error:  # the tokenizers library raises bare Exception, for an unknown word too
        raise ModelError("model.tokenizer", detail=str(error)) from error


def _special(tokenizer: Tokenizer) -> set[tuple[int, bool]]:
    """The added tokens, and whether each is special: a special one is never made from a user's text
    alike.
    """
    return {
        (token, bool(getattr(added, "special", True)))
        for token, added in tokenizer.added_tokens_decoder.items()
    }
