"""A model that is ready for requests, and the right to send them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from omlx.engine.types import Reason
from omlx.models.pool.speculative import Speculative
from omlx.text.grammar import GrammarCompiler

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

    from omlx.text.detokenize import TokenBytes


@dataclass(frozen=True, slots=True)
class Served:
    """A model that is ready for requests. `no_draft` says why no model drafts for it, if none does; `off` why nobody
    may, where its cache cannot take tokens back.

    `speculative` is what was configured when it was loaded.
    """

    id: str
    tokenizer: TokenizerWrapper
    token_bytes: TokenBytes
    vocab_size: int
    context_length: int
    stop_ids: frozenset[int]
    sampling: Mapping[str, float]
    draft: str | None
    no_draft: Reason | None
    off: Reason | None = None
    speculative: Speculative = field(default_factory=Speculative)
    grammars: GrammarCompiler = field(init=False)

    @property
    def draft_failed(self) -> bool:
        """Whether its draft fits as far as its files tell, and could not be used."""
        return self.no_draft is not None and self.no_draft.code == "spec.off.draft_failed"

    def __post_init__(self) -> None:
        object.__setattr__(self, "grammars", GrammarCompiler(self.tokenizer, self.stop_ids))


class Lease:
    """The right to send requests to a model until `release`, which may be called again."""

    def __init__(self, served: Served, give_back: Callable[[], None]) -> None:
        self.served = served
        self._give_back: Callable[[], None] | None = give_back

    def release(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()
