"""Opens models for the tests of the server."""

from __future__ import annotations

import json
from pathlib import Path

from mlx_lm.utils import load_model, load_tokenizer

from omlx.engine.types import Reason
from omlx.errors import ModelError
from omlx.models.entry import ModelEntry
from omlx.models.pool import Loaded


class Opener:
    def load(self, entry: ModelEntry) -> Loaded:
        try:
            model, config = load_model(Path(entry.path))
        except Exception as error:
            raise ModelError("model.failed", param="model", model=entry.id, detail=str(error)) from error
        tokenizer = load_tokenizer(Path(entry.path))
        sampling = json.loads((entry.path / "generation_config.json").read_text())
        keep = {k: v for k, v in sampling.items() if k in ("temperature", "top_p", "top_k")}
        return Loaded(model, tokenizer, config["max_position_embeddings"], frozenset(tokenizer.eos_token_ids), keep)

    def misfit(self, target: ModelEntry, draft: ModelEntry) -> Reason | None:
        same = (target.path / "tokenizer.json").read_bytes() == (draft.path / "tokenizer.json").read_bytes()
        return None if same else Reason("draft.unfit.vocab", {"draft": draft.id})
