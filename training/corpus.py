"""Stream of training batches: documents of seven kinds, packed into rows of one length.

A document is a list of token ids with a weight for each: answers count fully, prompts less, and
unpredictable tokens (the first pass of a random sequence) not at all. The rest of a row is filled
with library code.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer

from training import dialogues
from training.dialogues import Dialogue
from training.snippets import Library
from training.tokenizer import END_OF_TEXT, IM_END, IM_START, IMAGE, VOCAB_SIZE, Chat

# Shares of the documents' tokens; library code comes on top as filler and is topped up by whole
# rows.
MIX = (
    ("random", 20),
    ("edit", 46),
    ("text", 2),
    ("tool", 6),
    ("sum", 6),
    ("talk", 4),
    ("library", 16),
)
PROMPT_WEIGHT, LIBRARY_WEIGHT = 0.3, 0.5


@dataclass(frozen=True, slots=True)
class Document:
    ids: list[int]
    weights: list[float]


@dataclass(frozen=True, slots=True)
class Batch:
    """``tokens`` and their loss ``weights``, each [rows, length + 1]."""

    tokens: np.ndarray
    weights: np.ndarray


class Corpus:
    """Sampler and packer of documents; the same seed gives the same stream."""

    def __init__(self, tokenizer: Tokenizer, library: Library, seed: int) -> None:
        self.tokenizer = tokenizer
        self.library = library
        self.chat = Chat()
        self.rng = random.Random(seed)
        self._assistant = tokenizer.encode("assistant\n").ids
        self._think = tokenizer.token_to_id("<think>")
        self._drawn = {name: 0 for name, _ in MIX}

    def batch(self, rows: int, length: int) -> Batch:
        """Return the next ``rows`` rows of ``length`` tokens to predict."""
        packed = [self._row(length + 1) for _ in range(rows)]
        return Batch(
            np.array([row.ids for row in packed], dtype=np.int64),
            np.array([row.weights for row in packed], dtype=np.float32),
        )

    def document(self, kind: str, longest: int) -> Document:
        """Return one document; only random sequences and library code obey ``longest``."""
        match kind:
            case "random":
                return self._random(longest)
            case "library":
                return self._library(longest)
            case _:
                return self.encode(self.dialogue(kind, longest))

    def dialogue(self, kind: str, longest: int) -> Dialogue:
        match kind:
            case "edit":
                # Long rows are there to learn far positions: talk longer about one function.
                turns = self.rng.randint(2, 6) if longest > 1024 else None
                return dialogues.edit_dialogue(self.rng, self.library, turns)
            case "text":
                return dialogues.text_dialogue(self.rng)
            case "tool":
                return dialogues.tool_dialogue(self.rng)
            case "sum":
                return dialogues.sum_dialogue(self.rng)
            case "talk":
                return dialogues.small_talk(self.rng)
        raise ValueError(f"unknown kind of document: {kind}")

    def encode(self, dialogue: Dialogue, picture: str = "") -> Document:
        """Return the rendered conversation; the assistant's turns have weight 1.

        `picture` is the text that stands for a picture.
        """
        text = self.chat.render(dialogue.messages, dialogue.tools).replace(IMAGE, picture)
        ids = self.tokenizer.encode(text).ids
        opening = [IM_START, *self._assistant]
        weights, inside = [], False
        for at, token in enumerate(ids):
            begins = ids[max(0, at - len(opening)) : at] == opening
            inside = inside or begins
            # The template opens the reasoning block; the model must not learn to open one by
            # itself.
            if begins and token == self._think:
                weights.append(0.0)
            else:
                weights.append(1.0 if inside else PROMPT_WEIGHT)
            inside = inside and token != IM_END
        return Document(ids, weights)

    def _row(self, length: int) -> Document:
        ids: list[int] = []
        weights: list[float] = []
        misfits = 0
        while len(ids) < length:
            # The kind that is furthest behind its share goes next, so the mix holds in tokens, not
            # in documents.
            kind = min(
                MIX, key=lambda entry: (self._drawn[entry[0]] + self.rng.random() * 400) / entry[1]
            )[0]
            room = length - len(ids)
            document = (
                self._library(room) if misfits > 3 or room < 48 else self.document(kind, room)
            )
            if len(document.ids) > room:
                misfits += 1
                continue
            self._drawn["library" if misfits > 3 or room < 48 else kind] += len(document.ids)
            ids += document.ids
            weights += document.weights
        return Document(ids, weights)

    def _random(self, longest: int) -> Document:
        """Return random tokens, repeated once or more, at times with other random tokens in
        between.
        """
        rng = self.rng
        total = min(
            longest - 1, rng.randint(24, 384) if longest <= 1024 else rng.randint(256, 1600)
        )
        period = max(4, min(total // 2, int(8 * (total / 16) ** rng.random())))
        # A small alphabet makes single tokens ambiguous, so that more than one token of context has
        # to match.
        alphabet = rng.sample(range(3, VOCAB_SIZE - 6), rng.choice((VOCAB_SIZE - 9, 256, 48)))
        block = rng.choices(alphabet, k=period)
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < total:
            weights += [1.0 if ids else 0.0] * period
            ids += block
            if rng.random() < 0.2:
                gap = rng.choices(alphabet, k=rng.randint(1, 16))
                weights += [0.0] * (len(gap) + 1)  # where a gap ends is unknown as well
                ids += [*gap, block[0]]
                weights += [1.0] * (period - 1)
                ids += block[1:]
        return Document([*ids[:total], END_OF_TEXT], [*weights[:total], 0.0])

    def _library(self, longest: int) -> Document:
        """Return a window of a source file, of at most ``longest`` tokens."""
        text = self.library.file(self.rng)
        start = text.rfind("\n", 0, self.rng.randrange(len(text) + 1)) + 1
        ids = self.tokenizer.encode(text[start : start + 8 * longest]).ids[: longest - 1]
        return Document([*ids, END_OF_TEXT], [LIBRARY_WEIGHT] * (len(ids) + 1))
