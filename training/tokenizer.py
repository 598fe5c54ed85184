"""The tokenizer of the demo models: byte-level BPE, 2,048 tokens, and a ChatML-like chat template.

Reversible on any UTF-8 text, since all 256 bytes are tokens; digits are split, so that sums stay
learnable. ``Chat`` renders conversations with the bundled template, so training and serving agree.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 2048
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")  # ids 0, 1, 2
END_OF_TEXT, IM_START, IM_END = range(3)
# One token each, but ordinary text: a client must see them in the stream to parse them.
MARKERS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
MAX_POSITIONS = 4096
IMAGE = "<image>"  # what the chat template writes for a picture
AROUND, GLOBAL = "<fake_token_around_image>", "<global-img>"
MEDIA = (AROUND, GLOBAL, IMAGE)  # tokens behind the vocabulary, of the model that sees

Message = dict[str, Any]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Return a BPE tokenizer of exactly ``VOCAB_SIZE`` tokens, special tokens first and markers
    last.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    # mlx-lm recognises this decoder and then streams with its BPE detokenizer.
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(MARKERS),
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_tokens(
        [AddedToken(marker, special=False, normalized=False) for marker in MARKERS]
    )
    if tokenizer.get_vocab_size() != VOCAB_SIZE:
        raise ValueError(
            f"expected {VOCAB_SIZE} tokens, got {tokenizer.get_vocab_size()}: train on more text"
        )
    return tokenizer


OPENED_REASONING = """  {%- if enable_thinking -%}
    {{- '<think>\\n' -}}
  {%- endif -%}
"""


class Chat:
    """Renderer of messages with the bundled template, as a server does.

    ``reasons``: a prompt may end with an opened reasoning block, which servers ask for by default.
    """

    def __init__(self, *, reasons: bool = True) -> None:
        source = (Path(__file__).parent / "chat_template.jinja").read_text(encoding="utf-8")
        self.source = source if reasons else source.replace(OPENED_REASONING, "")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        # Jinja's own filter escapes "<" for HTML; servers replace it with plain JSON, and so does
        # this.
        environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
        self._template = environment.from_string(self.source)

    def render(
        self, messages: list[Message], tools: list[Message] | None = None, **options: bool
    ) -> str:
        """Return the prompt text; ``options`` are ``add_generation_prompt`` and
        ``enable_thinking``.
        """
        return self._template.render(messages=messages, tools=tools, **options)


def write_tokenizer(tokenizer: Tokenizer, folder: Path, *, reasons: bool = True) -> None:
    """Write tokenizer.json and tokenizer_config.json into ``folder``; ``reasons`` as in `Chat`."""
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": SPECIAL[IM_END],
        "pad_token": SPECIAL[END_OF_TEXT],
        "additional_special_tokens": [SPECIAL[IM_START]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_POSITIONS,
        "chat_template": Chat(reasons=reasons).source,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
