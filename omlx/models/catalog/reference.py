"""How packages and settings name a draft: `org/name[:quant][@revision]`, or the name of a model that is here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from omlx.engine.types import Reason
from omlx.errors import ModelError, NotFound, Param
from omlx.models.catalog.discovery import Registry
from omlx.models.catalog.entry import ModelEntry, Status
from omlx.models.catalog.inspect_checkpoint import inspect_checkpoint

_NAME = r"\w[\w .+()-]*"  # of a folder too, as people call them
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
        """Raises ModelError for what is not of that form."""
        match = _FORM.fullmatch(text)
        if match is None or ".." in text:
            raise ModelError("draft.malformed", draft=text)
        return cls(match["repository"], match["quant"], match["revision"])

    @property
    def gguf(self) -> bool:
        """Whether its name or its quantization says that the weights are GGUF files."""
        return (
            "gguf" in self.repository.lower() or _GGUF_QUANT.fullmatch(self.quant or "") is not None
        )

    @property
    def on_hub(self) -> bool:
        return "/" in self.repository

    def __str__(self) -> str:
        quant, revision = self.quant, self.revision
        return (
            f"{self.repository}{f':{quant}' if quant else ''}{f'@{revision}' if revision else ''}"
        )


@dataclass(frozen=True, slots=True)
class MissingDraft:
    """What would be fetched. `size_bytes` is None where nobody has said how large it is.

    `fetching` says that it is on its way, `failed` why it did not arrive.
    """

    reference: Reference
    size_bytes: int | None = None
    fetching: bool = False
    failed: Reason | None = None


def find_draft(name: str, registry: Registry) -> ModelEntry | Reason:
    """The model that `name` means, usable or not, or why there is none here. Reads folder names and configs."""
    entry = _listed(name, registry)
    if entry is not None:
        return entry
    try:
        reference = Reference.parse(name)
    except ModelError as error:
        return Reason(error.code, error.params)
    entry = _listed(reference.repository, registry)
    if isinstance(entry, Reason):
        return entry
    if entry is not None and reference.revision is not None:
        entry = _at_revision(entry, reference.revision)
    if entry is None:
        return Reason("draft.unfit.gguf" if reference.gguf else "draft.not_here", {"draft": name})
    if _other_quantization(reference, entry):
        params: dict[str, Param] = {
            "draft": entry.id,
            "wanted": reference.quant,
            "found": entry.quantization,
        }
        return Reason("draft.other_quantization", params)
    return entry


def _listed(name: str, registry: Registry) -> ModelEntry | Reason | None:
    """The model of this id or short name; a reason where several have it."""
    try:
        return registry.find(name)
    except NotFound as error:
        return Reason(error.code, error.params) if error.code == "model.ambiguous" else None
    except ModelError:
        return next(
            e for e in registry.entries if e.status is Status.SKIPPED and name in (e.id, e.name)
        )


def _at_revision(entry: ModelEntry, revision: str) -> ModelEntry | None:
    """The same model at a revision, where the hub's cache holds several; a plain folder is taken as it is."""
    if entry.path.parent.name != "snapshots":
        return entry
    repository = entry.path.parent.parent
    named = repository / "refs" / revision
    try:
        commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
        snapshot = repository / "snapshots" / commit
        if snapshot == entry.path:
            return entry
        return inspect_checkpoint(entry.id, snapshot, entry.source) if snapshot.is_dir() else None
    except (OSError, ValueError):  # a name that no file system holds, a file that cannot be read
        return None


def _other_quantization(reference: Reference, entry: ModelEntry) -> bool:
    """Whether both say how the weights are quantized, and differently."""
    if reference.quant is None or entry.quantization is None or reference.gguf:
        return False
    return _letters(reference.quant) != _letters(entry.quantization)


def _letters(text: str) -> str:
    return re.sub(r"[^a-z0-9]", "", text.lower())
