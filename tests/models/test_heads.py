"""Draft heads on disk are read back as they were; the bundled one is right often enough."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest
from mlx import nn
from mlx.utils import tree_flatten

from omlx.engine.build import build_loop
from omlx.engine.device.model import cache_maker, parts_of
from omlx.engine.speculation.drafters.head import HeadDrafter
from omlx.engine.speculation.strategy import OFF, only
from omlx.engine.types import Limits, Request, Sampling, Speculation
from omlx.errors import ModelError, Reason
from omlx.models.catalog.discovery import BUNDLED
from omlx.models.catalog.drafters import drafter_mismatch, head_directory, own_head
from omlx.models.catalog.registry import ModelEntry
from omlx.models.catalog.tokenizer import read_tokenizer
from omlx.models.pool.head import build_head, head_bytes
from omlx.models.pool.opening import open_model
from tests import zoo
from tests.engine.harness import Bench, model
from tests.models.heads import (
    declare,
    plain,
    random_head,
    same,
    save_directory,
    save_target,
    upstream,
)
from tests.models.trees import inspected
from tests.refusals import refused
from tests.server.running import TARGET

QWEN = ("qwen3_5", "qwen3_5_moe", "qwen3_next")


LAYOUTS = {
    "in a shard": ("model-mtp.safetensors", upstream),
    "packed in a shard": ("model-mtp.safetensors", partial(upstream, packed=True)),
    "beside": ("mtp.safetensors", upstream),
    "below": ("mtp/weights.safetensors", plain),
}
"""Where the tensors of a head lie, and under which names."""


def lay(layout: str, folder: Path, head: nn.Module) -> None:
    name, named = LAYOUTS[layout]
    (folder / name).parent.mkdir(exist_ok=True)
    mx.save_safetensors(str(folder / name), named(head))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", QWEN)
def test_heads_beside_the_weights_are_read_as_they_were(
    tmp_path: Path, family: str, layout: str
) -> None:
    head = random_head(family)
    save_target(tmp_path / "target", family)
    before = inspected(tmp_path / "target").size_bytes
    lay(layout, tmp_path / "target", head)
    files = own_head(inspected(tmp_path / "target"))
    assert same(plain(build_head(files, model(family))), plain(head), 1e-6)
    weights = sum(array.nbytes for _, array in tree_flatten(head.parameters()))
    assert files.nbytes == weights
    if "shard" not in layout:
        assert inspected(tmp_path / "target").size_bytes == before


@pytest.mark.parametrize("layout", ["in a shard", "beside", "below"])
def test_a_head_is_not_read_as_weights_of_its_model(tmp_path: Path, layout: str) -> None:
    save_target(tmp_path / "target", "qwen3_5")
    plainly, *_ = open_model(tmp_path / "target", "auto", trusted=False)
    lay(layout, tmp_path / "target", random_head("qwen3_5"))
    beside_head, *_ = open_model(tmp_path / "target", "auto", trusted=False)
    assert same(plain(beside_head), plain(plainly))


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("family", ["qwen3_5", "qwen3_5_moe"])
def test_a_quantized_directory_of_its_own(tmp_path: Path, family: str, bits: int) -> None:
    head = random_head(family)
    nn.quantize(head, group_size=32, bits=bits)
    save_target(tmp_path / "target", family)
    quantization = {"group_size": 32, "bits": bits}
    save_directory(tmp_path / "head", tmp_path / "target", plain(head), quantization=quantization)
    target, entry = inspected(tmp_path / "target"), inspected(tmp_path / "head")
    assert entry.drafter == "mtp"
    assert drafter_mismatch(target, entry) is None
    read = build_head(head_directory(entry), model(family))
    assert any(isinstance(part, nn.QuantizedLinear) for part in read.modules())
    assert same(plain(read), plain(head))


def test_a_head_of_another_size_or_family_does_not_fit(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "qwen3_5")
    save_directory(tmp_path / "head", tmp_path / "target", plain(random_head("qwen3_5")))
    target, entry = inspected(tmp_path / "target"), inspected(tmp_path / "head")
    text = {"hidden_size": 999, "vocab_size": zoo.VOCAB_SIZE}
    declare(tmp_path / "head", text_config=text)
    params = {"draft": "head", "field": "hidden_size", "wanted": "999", "found": "64"}
    assert drafter_mismatch(target, entry) == Reason("draft.unfit.head", params)
    declare(tmp_path / "head", model_type="deepseek_mtp")
    params = {"draft": "head", "field": "model_type", "wanted": "deepseek", "found": "qwen3_5"}
    assert drafter_mismatch(target, entry) == Reason("draft.unfit.head", params)


def test_other_heads_are_no_drafters_here(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "qwen3_5")
    save_directory(tmp_path / "head", tmp_path / "target", plain(random_head("qwen3_5")))
    for kind in ("qwen3_eagle", "qwen3_5_dflash", "gemma4_assistant"):
        declare(tmp_path / "head", model_type=kind)
        entry = inspected(tmp_path / "head")
        assert entry.drafter is None
        assert entry.reason.code == "model.head_only"


def test_a_promised_head_that_is_missing_is_named_with_a_command(tmp_path: Path) -> None:
    save_target(tmp_path / "Q-27B-4bit", "qwen3_5")
    assert own_head(inspected(tmp_path / "Q-27B-4bit")) == Reason("spec.off.no_head")
    declare(tmp_path / "Q-27B-4bit", mtp_num_hidden_layers=1)
    params: dict[str, Any] = {"model": "Q-27B-4bit", "command": "omlx pull Q-27B-MTP-4bit"}
    assert own_head(inspected(tmp_path / "Q-27B-4bit")) == Reason("spec.off.head_missing", params)


def test_a_shortlist_is_read_with_its_head_and_counted(tmp_path: Path) -> None:
    head = random_head("llama")
    save_target(tmp_path / "target", "llama")
    ids = {"draft_token_ids": mx.array([5, 3, 9], mx.int32)}
    mx.save_safetensors(str(tmp_path / "target" / "mtp.safetensors"), plain(head) | ids)
    files = own_head(inspected(tmp_path / "target"))
    assert files.draft_ids == 3
    read = build_head(files, model("llama"))
    assert read.draft_token_ids.tolist() == [5, 3, 9]
    parts = parts_of(model("llama"))
    row = sum(tensor.nbytes for tensor in parts.output.parameters().values()) // zoo.VOCAB_SIZE
    assert head_bytes(files, model("llama")) == files.nbytes + 3 * row


@pytest.mark.parametrize(
    ("name", "tensor", "said"),
    [
        ("fc.weight", None, "fc.weight"),
        ("extra.weight", mx.zeros(3), "extra"),
        ("fc.weight", mx.zeros((4, 8)), "(4, 8)"),
        ("layers.1.norm.weight", mx.zeros(3), "2 layers"),
    ],
    ids=["missing", "extra", "shape", "layers"],
)
def test_weights_that_do_not_fit_are_named(
    tmp_path: Path, name: str, tensor: mx.array | None, said: str
) -> None:
    save_target(tmp_path / "target", "qwen3_5")
    changed = upstream(random_head("qwen3_5")) | {f"mtp.{name}": tensor}
    tensors = {name: tensor for name, tensor in changed.items() if tensor is not None}
    mx.save_safetensors(str(tmp_path / "target" / "mtp.safetensors"), tensors)
    files = own_head(inspected(tmp_path / "target"))
    with refused(ModelError, "spec.off.head_weights", said):
        build_head(files, model("qwen3_5"))


def test_architectures_without_known_heads_and_damaged_files_are_named(tmp_path: Path) -> None:
    save_target(tmp_path / "target", "gemma3_text")
    lay("beside", tmp_path / "target", random_head("qwen3_5"))
    files = own_head(inspected(tmp_path / "target"))
    with refused(ModelError, "spec.off.head_unsupported"):
        build_head(files, model("gemma3_text"))
    whole = (tmp_path / "target" / "mtp.safetensors").read_bytes()
    (tmp_path / "target" / "mtp.safetensors").write_bytes(whole[:-9])
    with refused(ModelError, "model.truncated"):
        own_head(inspected(tmp_path / "target"))


TARGET_ENTRY = ModelEntry(TARGET, BUNDLED / TARGET, "bundled")
TEXTS = (
    "Repeat this: the quick brown fox jumps over the lazy dog while nine old owls watch.",
    "What is 317 + 484?",
    "Rename size to length.\n\ndef area(size, width):\n    return size * width\n",
)


def test_it_accepts_most_first_tokens_and_changes_none() -> None:
    files = own_head(TARGET_ENTRY)
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
