"""A draft is compatible if its token ids mean the same; otherwise a code says why not."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from omlx.catalog import catalog
from omlx.errors import Reason
from omlx.models.catalog.discovery import BUNDLED, Folder, scan_places
from omlx.models.catalog.reference import checkpoint_mismatch, tokenizer_mismatch
from omlx.models.catalog.tokenizer import read_tokenizer
from tests.models.breakage import swap_two_tokens, vocabulary
from tests.models.trees import entry, model, shards, with_tokenizer

DEMO = BUNDLED / "omlx-demo/draft"


def changed(folder: Path, change: Any) -> Path:
    """Return the demo tokenizer with `change` applied to its tokenizer.json."""
    with_tokenizer(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    vocabulary(change)(folder)
    return folder


def add_a_token(content: dict[str, Any]) -> None:
    added = dict(
        content["added_tokens"][0], id=len(content["model"]["vocab"]) + 100, content="<|more|>"
    )
    content["added_tokens"].append(added)


def make_a_token_special(content: dict[str, Any]) -> None:
    token = next(token for token in content["added_tokens"] if not token["special"])
    token["special"] = True


def add_tokens(content: dict[str, Any], names: tuple[str, ...], *, special: bool = True) -> None:
    first = 1 + max(
        *content["model"]["vocab"].values(), *(each["id"] for each in content["added_tokens"])
    )
    like = next(token for token in content["added_tokens"] if token["special"])
    content["added_tokens"] += [
        dict(like, id=first + i, content=name, special=special) for i, name in enumerate(names)
    ]


def drop_the_merges(content: dict[str, Any]) -> None:
    content["model"]["merges"] = content["model"]["merges"][:10]


def test_the_same_tokenizer_is_compatible(tmp_path: Path) -> None:
    same = changed(tmp_path / "same", lambda content: None)
    assert tokenizer_mismatch(read_tokenizer(entry(DEMO)), read_tokenizer(entry(same))) is None


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (swap_two_tokens, "draft.unfit.vocabulary"),
        (add_a_token, "draft.unfit.vocabulary"),
        (make_a_token_special, "draft.unfit.special_tokens"),
        (drop_the_merges, "draft.unfit.probe"),
    ],
)
def test_a_similar_tokenizer_is_not_compatible(tmp_path: Path, change: Any, code: str) -> None:
    theirs = read_tokenizer(entry(changed(tmp_path / "other", change)))
    reason = tokenizer_mismatch(read_tokenizer(entry(DEMO)), theirs)
    assert reason.code == code
    assert code in catalog()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (("<image>", "<row_1_col_1>", "<|img_row_1_col_1|>"), ()),
        (("<|vision_start|>", "<image_soft_token>", "<|video_pad|>"), ("<|reserved_0|>",)),
        (("<img>", "</img>", "<IMG_CONTEXT>", "<box>"), ("<unused1>", "<audio>")),
    ],
)
def test_tokens_for_media_may_differ(
    tmp_path: Path, ours: tuple[str, ...], theirs: tuple[str, ...]
) -> None:
    target, draft = (
        read_tokenizer(entry(changed(tmp_path / kind, partial(add_tokens, names=names))))
        for kind, names in (("target", ours), ("draft", theirs))
    )
    assert target.get_vocab() != draft.get_vocab()
    assert tokenizer_mismatch(target, draft) is None
    assert tokenizer_mismatch(draft, target) is None


@pytest.mark.parametrize("special", [True, False])
def test_other_tokens_beside_those_for_media_may_not(tmp_path: Path, special: bool) -> None:
    def change(content: dict[str, Any]) -> None:
        if special:
            add_tokens(content, ("<image>", "<end_of_utterance>"))
        else:
            add_tokens(content, ("<image>",), special=False)  # a word, which text becomes

    theirs = read_tokenizer(entry(changed(tmp_path / "a", change)))
    reason = tokenizer_mismatch(read_tokenizer(entry(DEMO)), theirs)
    assert reason.code == "draft.unfit.vocabulary"
    shared, *sizes = (int(str(reason.params[name])) for name in ("shared", "target", "draft"))
    assert 0 < shared <= min(sizes) < max(sizes)


def test_a_model_does_not_draft_for_itself() -> None:
    assert checkpoint_mismatch(entry(DEMO), entry(DEMO)) == Reason(
        "draft.unfit.same_model", {"draft": "draft"}
    )


def test_a_copy_or_an_equally_large_model_does_not_draft(tmp_path: Path) -> None:
    sizes = {"big": 3, "copy": 3, "links": 3, "larger": 4, "small": 2}
    for name, count in sizes.items():
        model(tmp_path / name, files=shards(count))
    for file in (tmp_path / "links").glob("*.safetensors"):
        file.unlink()
        file.symlink_to(tmp_path / "big" / file.name)
    registry = scan_places([Folder("here", tmp_path)])
    target, *drafts = map(registry.get_usable, sizes)
    reasons = [checkpoint_mismatch(target, draft) for draft in drafts]
    codes = [reason and reason.code for reason in reasons]
    assert codes == ["draft.unfit.not_smaller"] * 3 + [None]


@pytest.mark.parametrize(
    ("config", "files", "code"),
    [
        ({"model_type": "eagle"}, ["model.safetensors"], "draft.unfit.head_only"),
        (
            {"model_type": "qwen3", "dflash_config": {}, "hidden_size": 9},
            ["model.safetensors"],
            "draft.unfit.head",
        ),
        ({"model_type": "qwen3_5_mtp"}, ["model.safetensors"], "draft.unfit.head"),
        ({"model_type": "gemma4_assistant"}, ["model.safetensors"], "draft.unfit.head_only"),
        (
            {"architectures": ["LlamaForCausalLMEagle3"], "vocab_size": 9},
            ["pytorch_model.bin"],
            "draft.unfit.head",
        ),
        ({"model_type": "llama"}, ["model.safetensors.part"], "draft.unfit.half_download"),
        ({}, ["draft.gguf"], "draft.unfit.gguf"),
        ({"model_type": "llama"}, [], "draft.unfit.unusable"),
        ({"model_type": "llama"}, ["model.safetensors"], None),
    ],
)
def test_mismatches_that_files_show(
    tmp_path: Path, config: dict[str, Any], files: list[str], code: str | None
) -> None:
    model(tmp_path / "org/draft", config, files)
    (draft,) = scan_places([Folder("models", tmp_path)]).entries
    reason = checkpoint_mismatch(entry(DEMO), draft)
    assert (reason.code if reason else None) == code
    assert code is None or code in catalog()
    assert reason is None or re.search(r"model\.\w", reason.message) is None, (
        "a code where a sentence ought to be"
    )
