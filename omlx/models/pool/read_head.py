"""A draft head for a model in memory: read in portions, on the engine thread, then a drafter."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING

from omlx.errors import Reason
from omlx.models.heads.files import HeadFiles, head_directory, own_head
from omlx.models.heads.load_head import build_head, is_quantized
from omlx.models.pool.draft_choice import DraftChoice
from omlx.models.pool.load_weights import (
    Dtype,
    LoadedModel,
    LoadProgress,
    cast_weights,
    read_weights,
)

if TYPE_CHECKING:
    from omlx.engine.model import Model
    from omlx.engine.speculation.drafters.head import HeadDrafter
    from omlx.models.heads.module import HeadModule


def find_head(choice: DraftChoice, target: LoadedModel) -> HeadFiles | Reason:
    """Return the files of the head chosen as a draft, else of the one that came with the target, or
    why there is none. Raises ModelError.

    Beside a draft model there is none: it reads each prompt, although `auto` would not draft by it.
    """
    if choice.draft_model is not None:
        return Reason("spec.off.head_unused", {"draft": choice.draft_model.id})
    files = own_head(choice.target) if choice.head is None else head_directory(choice.head)
    if isinstance(files, HeadFiles) and target.stage is not None:
        return Reason("spec.off.head_staged")
    return files


def head_bytes(files: HeadFiles, target: Model) -> int:
    """Return the bytes of a head of `target` in memory, with the output rows of its shortlist."""
    from omlx.engine.hidden import parts_of  # noqa: PLC0415 — see `import_mlx_lm`
    from omlx.engine.speculation.drafters.shortlist import (  # noqa: PLC0415 — as above
        shortlist_bytes,
    )

    parts = parts_of(target)
    rows = 0 if parts is None else shortlist_bytes(files.draft_ids, parts.output)
    return files.nbytes + rows


def head_steps(
    files: HeadFiles, target: LoadedModel, dtype: Dtype
) -> Generator[LoadProgress, None, HeadModule]:
    """Read a head of `target` in steps; return it. Raises ModelError."""
    head = build_head(files, target.model)
    if not is_quantized(head):
        cast_weights(head, {}, dtype)
    yield from read_weights(head)
    return head


def head_drafter(
    choice: DraftChoice, target: LoadedModel, head: HeadModule | Reason
) -> HeadDrafter | Reason:
    """Return the drafter of a head, or why there is none. Runs short passes."""
    from omlx.engine.model import cache_maker  # noqa: PLC0415 — see `import_mlx_lm`
    from omlx.engine.speculation.drafters.head import HeadDrafter  # noqa: PLC0415 — as above

    if isinstance(head, Reason):
        return head
    name = HeadDrafter.name if choice.head is None else choice.head.id
    make_cache, vocab_size = cache_maker(target.model), target.facts.vocab_size
    return HeadDrafter.of(name, head, target.model, make_cache, vocab_size, head.draft_token_ids)
