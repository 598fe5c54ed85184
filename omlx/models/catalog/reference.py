"""Model references, and draft compatibility: whether the model referenced can draft for another.

A reference is `org/name[:quant][@revision]`, or the name of a model on disk: used for drafts in
packages and settings, and by `omlx pull`. Compatibility follows from files and tokenizers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from omlx.errors import BadRequest, ModelError, NotFound, Param, Reason
from omlx.models.catalog.discovery import HUB_CACHE
from omlx.models.catalog.drafters import drafter_mismatch
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import ModelEntry, Registry, Status
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.text.tokens import Tokenizer

_NAME = r"\w[\w .+()-]*"  # the name of a folder, too
_FORM = re.compile(
    rf"(?P<repository>{_NAME}(?:/{_NAME})?)(?::(?P<quant>[\w.-]+))?(?:@(?P<revision>\w[\w./-]*))?"
)
_GGUF_QUANT = re.compile(r"(I?Q\d\w*|BF16|F16|F32|TQ\d\w*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Reference:
    repository: str
    quant: str | None = None
    revision: str | None = None

    @classmethod
    def parse(cls, text: str) -> Reference:
        """Parse a reference. Raises ModelError if malformed."""
        match = _FORM.fullmatch(text)
        if match is None or ".." in text:
            raise ModelError("draft.malformed", draft=text)
        return cls(match["repository"], match["quant"], match["revision"])

    @property
    def gguf(self) -> bool:
        """True if repository name or quantization indicates GGUF weights."""
        named_gguf = "gguf" in self.repository.lower()
        return named_gguf or _GGUF_QUANT.fullmatch(self.quant or "") is not None

    @property
    def on_hub(self) -> bool:
        return "/" in self.repository

    def __str__(self) -> str:
        text = self.repository
        if self.quant:
            text += f":{self.quant}"
        if self.revision:
            text += f"@{self.revision}"
        return text


@dataclass(frozen=True, slots=True)
class MissingDraft:
    """A declared draft that is not on disk. `size_bytes` is None if undeclared.

    `fetching`: a download is under way; `failed`: reason of a failed download.
    """

    reference: Reference
    size_bytes: int | None = None
    fetching: bool = False
    failed: Reason | None = None


def find_draft(name: str, registry: Registry) -> ModelEntry | Reason:
    """Return the referenced model, usable or not, or the reason why none is on disk.

    Reads folder names and configs.
    """
    entry = _listed(name, registry)
    if entry is not None:
        return entry
    try:
        reference = Reference.parse(name)
    except ModelError as error:
        return error.reason
    entry = _listed(reference.repository, registry)
    if isinstance(entry, Reason):
        return entry
    if entry is not None and reference.revision is not None:
        entry = _at_revision(entry, reference.revision)
    if entry is None:
        return Reason("draft.unfit.gguf" if reference.gguf else "draft.not_here", {"draft": name})
    wanted, found = reference.quant, entry.quantization
    quants = {re.sub(r"[^a-z0-9]", "", quant.lower()) for quant in (wanted, found) if quant}
    if wanted and found and len(quants) > 1 and not reference.gguf:
        params: dict[str, Param] = {"draft": entry.id, "wanted": wanted, "found": found}
        return Reason("draft.other_quantization", params)
    return entry


def _listed(name: str, registry: Registry) -> ModelEntry | Reason | None:
    """Return the model with this id or short name; a reason for an ambiguous name."""
    try:
        return registry.get(name)
    except NotFound as error:
        if error.code == "model.ambiguous":
            return error.reason
        return None


def _at_revision(entry: ModelEntry, revision: str) -> ModelEntry | None:
    """Return the model at a revision of the hub's cache; plain folders match any revision."""
    if entry.path.parent.name != "snapshots":
        return entry
    repository = entry.path.parent.parent
    pointer = repository / "refs" / revision
    try:
        commit = pointer.read_text(encoding="utf-8").strip() if pointer.is_file() else revision
        snapshot = repository / "snapshots" / commit
        if snapshot == entry.path:
            return entry
        if not snapshot.is_dir():
            return None
        return inspect_checkpoint(entry.id, snapshot, entry.source)
    except (OSError, ValueError):  # a name that no file system allows, or an unreadable file
        return None


PROBE = (
    "def f(x):\n\treturn {'a': [1, 23, 4567], \"b\": x ** -0.5}  # why?\r\n\n"
    "Äpfel, naïve façade — «да», 中文字符, 日本語かな, 한국어, العربية 👩\u200d💻🙂 \u00a0end   \n"
)
"""Code, white space, digits, scripts, joined emoji: similar tokenizers split these differently."""

_MEDIA = re.compile(
    r"image|img|vision|video|audio|row_\d+_col_\d+|patch|^<im_(start|end)>"
    r"|</?(quad|ref|box)>|reserved|unused",
    re.IGNORECASE,
)
"""Special tokens for media, or reserved: text-only tokenizers may lack or replace them."""

_INCOMPLETE = ("model.no_main", "model.no_config", "model.no_weights", "model.shards_missing")
"""Reasons of an incomplete download to the Hugging Face cache."""


def checkpoint_mismatch(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """Return why `draft` cannot draft for `target`, by files alone; None if compatible."""
    if draft.path == target.path or draft.id == target.id:
        return Reason("draft.unfit.same_model", {"draft": draft.id})
    if draft.status is not Status.SKIPPED or draft.reason is None:
        return too_large(target, draft)
    code = draft.reason.code
    in_cache = draft.source == HUB_CACHE
    if draft.drafter is not None:
        return drafter_mismatch(target, draft)
    if code == "model.head_only":
        return Reason("draft.unfit.head_only", {"draft": draft.id, **draft.reason.params})
    if code == "model.gguf_only":
        return Reason("draft.unfit.gguf", {"draft": draft.id})
    if code == "model.half_download" or (in_cache and code in _INCOMPLETE):
        return Reason("draft.unfit.half_download", {"draft": draft.id})
    return Reason("draft.unfit.unusable", {"draft": draft.id, "why": draft.reason.message})


def too_large(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """Return a reason unless the draft's weights are smaller: a pass is bound by reading them."""
    if draft.size_bytes >= target.size_bytes > 0:
        return Reason("draft.unfit.not_smaller", {"draft": draft.id})
    return None


def tokenizer_mismatch(target: Tokenizer, draft: Tokenizer) -> Reason | None:
    """Return why token ids differ in meaning; None if they agree, media tokens aside.

    Raises ModelError if a tokenizer fails.
    """
    ours, theirs = target.get_vocab(), draft.get_vocab()
    if ours != theirs:
        media = _media_tokens(target) | _media_tokens(draft)
        differing = len({name for name, _ in ours.items() ^ theirs.items()} - media)
        if differing:
            shared = len(ours.items() & theirs.items())
            sizes = {"target": len(ours), "draft": len(theirs)}
            return Reason("draft.unfit.vocabulary", {**sizes, "shared": shared})
    differing = len(_added_tokens(target) ^ _added_tokens(draft))
    if differing:
        return Reason("draft.unfit.special_tokens", {"differing": differing})
    if _encode_probe(target) != _encode_probe(draft):
        return Reason("draft.unfit.probe")
    return None


def draft_mismatch(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """Return why `draft` cannot draft for `target`, by files and tokenizers.

    Reads the tokenizers. Raises ModelError for unreadable ones.
    """
    reason = checkpoint_mismatch(target, draft)
    if reason is not None or draft.drafter is not None:  # a drafter has no tokenizer of its own
        return reason
    return tokenizer_mismatch(read_tokenizer(target), read_tokenizer(draft))


def draft_problem(target: ModelEntry, draft: ModelEntry) -> Reason | None:
    """Return the mismatch, or the reason that a tokenizer is unreadable. Never raises
    ModelError.
    """
    try:
        return draft_mismatch(target, draft)
    except ModelError as error:
        return Reason("draft.unfit.unusable", {"draft": draft.id, "why": error.message})


def check_draft(name: str, target: ModelEntry | None, registry: Registry) -> None:
    """Raise BadRequest for a malformed reference, or for a draft on disk unfit for `target`."""
    try:
        Reference.parse(name)
    except ModelError as error:
        raise BadRequest(error.code, param="draft_model", **error.params) from error
    draft = find_draft(name, registry)
    if target is None or isinstance(draft, Reason):
        return
    reason = checkpoint_mismatch(target, draft)
    if reason is not None:
        raise BadRequest(reason.code, param="draft_model", **reason.params)


def _encode_probe(tokenizer: Tokenizer) -> list[int]:
    try:
        return list(tokenizer.encode(PROBE, add_special_tokens=False))
    except Exception as error:  # tokenizers raises no narrower one, for unknown words too
        raise ModelError("model.tokenizer", detail=str(error)) from error


def _added_tokens(tokenizer: Tokenizer) -> set[tuple[int, bool]]:
    """Return (id, special) of added tokens, media tokens aside.

    Special tokens are never encoded from text, hence the probe does not cover them.
    """
    media = _media_tokens(tokenizer)
    return {
        (token, _is_special(added))
        for token, added in tokenizer.added_tokens_decoder.items()
        if str(added) not in media
    }


def _media_tokens(tokenizer: Tokenizer) -> set[str]:
    added = tokenizer.added_tokens_decoder.values()
    return {str(token) for token in added if _is_special(token) and _MEDIA.search(str(token))}


def _is_special(added: object) -> bool:
    return bool(getattr(added, "special", True))
