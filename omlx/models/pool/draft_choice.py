"""Which draft model to load for a target, or why none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.errors import BadRequest, ModelError, Reason
from omlx.models.catalog.entry import ModelEntry
from omlx.models.catalog.reference import find_draft
from omlx.models.catalog.registry import Registry
from omlx.models.heads.files import is_head
from omlx.models.package.compatibility import checkpoint_mismatch, tokenizer_mismatch
from omlx.models.package.tokenizer import read_tokenizer
from omlx.models.pool.load_weights import Dtype, LoadedModel
from omlx.models.pool.speculation_config import SpeculationConfig

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

WeightsOf = Callable[[ModelEntry, Dtype], LoadedModel | None]
"""Returns the weights of a model that is in memory as a target or as a draft."""


@dataclass(frozen=True, slots=True)
class DraftChoice:
    """A target to load with a draft, a model or a head, or with the reason why it has none.

    `requested`: a request named the draft, so that its failure is an error. `tokenizers` are those
    that were read to compare them, by model directory.
    """

    target: ModelEntry
    speculation: SpeculationConfig
    draft: ModelEntry | None = None
    reason: Reason | None = None
    requested: bool = False
    tokenizers: Mapping[Path, TokenizerWrapper] = field(default_factory=dict)

    @property
    def head(self) -> ModelEntry | None:
        """The draft, if it is a head."""
        return self.draft if self.draft is not None and is_head(self.draft) else None

    @property
    def draft_model(self) -> ModelEntry | None:
        """The draft, if it is a model of its own."""
        return self.draft if self.head is None else None

    def without_draft(self, detail: str) -> DraftChoice:
        """Return the choice after the draft has failed."""
        return replace(self, draft=None, reason=Reason("spec.off.draft_failed", {"detail": detail}))


def find_requested_draft(name: str, registry: Registry) -> ModelEntry:
    """Return the draft that a request names, usable or not: `choose_draft` judges it.

    Raises BadRequest.
    """
    draft = find_draft(name, registry)
    if isinstance(draft, Reason):
        code = "draft.not_found" if draft.code == "draft.not_here" else draft.code
        raise BadRequest(code, param="draft_model", **draft.params)
    return draft


def choose_draft(
    target: ModelEntry,
    speculation: SpeculationConfig,
    requested: ModelEntry | None,
    weights_of: WeightsOf,
) -> DraftChoice:
    """Return the draft to load: the requested one, else the configured one if it is compatible.

    Reads the tokenizers of models that are not in memory. Raises BadRequest and ModelError for a
    requested draft only.
    """
    draft = requested or speculation.active_draft
    if draft is None:
        return DraftChoice(target, speculation, reason=speculation.no_draft_reason)
    choice = DraftChoice(target, speculation, draft, requested=requested is not None)
    try:
        reason = checkpoint_mismatch(target, draft)
        if reason is None and not is_head(draft):  # a head has no tokenizer of its own
            dtype = speculation.settings.dtype
            ours, theirs = (_tokenizer(entry, dtype, weights_of) for entry in (target, draft))
            choice = replace(choice, tokenizers={target.path: ours, draft.path: theirs})
            reason = tokenizer_mismatch(ours, theirs)
    except ModelError as error:
        if requested is not None:
            raise ModelError(error.code, param="draft_model", **error.params) from error
        return choice.without_draft(error.message)
    if reason is None:
        return choice
    if requested is not None:
        raise BadRequest(reason.code, param="draft_model", **reason.params)
    return replace(choice, draft=None, reason=reason)


def _tokenizer(entry: ModelEntry, dtype: Dtype, weights_of: WeightsOf) -> TokenizerWrapper:
    loaded = weights_of(entry, dtype)
    return loaded.tokenizer if loaded is not None else read_tokenizer(entry)
