"""Model references: `org/name[:quant][@revision]`, or the name of a model on disk.

Used for drafts in packages and settings, and by `omlx pull`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from omlx.errors import ModelError, NotFound, Param, Reason
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint
from omlx.models.catalog.registry import ModelEntry, Registry

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
