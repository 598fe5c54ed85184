"""The head of the bundled target: small, and right often enough to be worth its time."""

from __future__ import annotations

import mlx.core as mx

from omlx.engine.build import build_loop
from omlx.engine.device.model import cache_maker
from omlx.engine.speculation.drafters.head import HeadDrafter
from omlx.engine.speculation.strategy import OFF, only
from omlx.engine.types import Limits, Request, Sampling, Speculation
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.drafters import HeadFiles, own_head
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.pool.head import build_head
from omlx.models.pool.opening import open_model
from tests.engine.harness import Bench
from tests.server.running import TARGET

TARGET_ENTRY = ModelEntry(TARGET, BUNDLED / TARGET, "bundled")
TEXTS = (
    "Repeat this: the quick brown fox jumps over the lazy dog while nine old owls watch.",
    "What is 317 + 484?",
    "Rename size to length.\n\ndef area(size, width):\n    return size * width\n",
)


def test_it_accepts_most_first_tokens_and_changes_none() -> None:
    files = own_head(TARGET_ENTRY)
    assert isinstance(files, HeadFiles)
    assert files.nbytes < 3 << 20
    target, *_ = open_model(TARGET_ENTRY.path, "auto", trusted=False)
    tokenizer = read_tokenizer(TARGET_ENTRY)
    head = build_head(files, target)
    head.set_dtype(mx.float32)
    vocab_size = max(tokenizer.get_vocab().values()) + 1
    drafter = HeadDrafter.of("mtp", head, target, cache_maker(target), vocab_size)
    limits = Limits(context_length=2048, num_draft_tokens=2)
    loop = build_loop(target, vocab_size, limits, heads={"mtp": drafter})
    accepted = rounds = 0
    for i, text in enumerate(TEXTS):
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, tokenize=True
        )
        answers = []
        for strategy in (only("mtp"), OFF):
            name = f"{i} {strategy}"
            sampling = Sampling(temperature=0.6, seed=i)
            speculation = Speculation(strategy)
            bench = Bench(loop)
            bench.run(Request(name, tuple(prompt), sampling, 40, speculation=speculation))
            answers.append(bench.tokens[name])
            if strategy is not OFF:
                drafted = bench.stats(name).drafters["mtp"]
                accepted += drafted.accepted_at[0]
                rounds += drafted.rounds
        assert answers[0] == answers[1]
    assert accepted > 0.6 * rounds > 12
