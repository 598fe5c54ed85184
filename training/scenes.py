"""Pictures as arrays, and conversations about them as tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer
from torch import Tensor

from training.corpus import Batch, Corpus
from training.pictures import (
    COLOURS,
    PLACES,
    SHAPES,
    Subject,
    draw,
    picture_dialogue,
    resized,
    subjects,
)
from training.sight import TILE_TOKENS
from training.tokenizer import AROUND, GLOBAL, IMAGE, MEDIA

SHOWN = f"{AROUND}{GLOBAL}{IMAGE * TILE_TOKENS}{AROUND}"  # what the processor writes for a picture
UNSEEN = f"{AROUND}{GLOBAL}{AROUND}"  # what a draft reads of it
LABELS = (COLOURS, SHAPES, tuple(PLACES.values()))
OTHER_ROWS, OTHER_LENGTH = 8, 160  # of a batch without pictures


@dataclass(frozen=True, slots=True)
class Scene:
    """Conversations about pictures: `batch` of tokens, `pictures` [count, 3, SIDE, SIDE]."""

    batch: Batch
    pictures: Tensor


class Scenes:
    """Sampler of pictures and of conversations about them; a seed gives the same stream."""

    def __init__(self, corpus: Corpus, *, held_out: bool = False) -> None:
        self.corpus, self.rng = corpus, corpus.rng
        self.subjects = subjects(held_out=held_out)

    def pictures(self, count: int, ink: float) -> tuple[Tensor, Tensor]:
        """Return pictures, and their labels [count, 3]; a share `ink` is black on white."""
        black = round(ink * count)
        inked = [subject for subject in self.subjects if subject.colour == "black"]
        shown = self.rng.choices(inked, k=black)
        shown += self.rng.choices(self.subjects, k=count - black)
        labels = [
            [names.index(name) for names, name in zip(LABELS, parts(subject), strict=True)]
            for subject in shown
        ]
        return self.show(shown, black), torch.tensor(labels)

    def talk(self, rows: int, *, blind: bool = False) -> Scene:
        """Return conversations, padded to one length; without the pictures if `blind`."""
        drawn: list[Subject] = []
        documents = []
        for _ in range(rows):
            count = self.rng.choices((0, 1, 2), (1, 17, 2))[0]
            shown = self.rng.choices(self.subjects, k=count)
            dialogue = picture_dialogue(self.rng, shown)
            documents.append(self.corpus.encode(dialogue, UNSEEN if blind else SHOWN))
            drawn += shown
        length = max(len(document.ids) for document in documents)
        tokens = np.zeros((rows, length), dtype=np.int64)
        weights = np.zeros((rows, length), dtype=np.float32)
        for row, document in enumerate(documents):
            tokens[row, : len(document.ids)] = document.ids
            weights[row, : len(document.ids)] = np.array(document.weights) == 1
        return Scene(Batch(tokens, weights), self.show([] if blind else drawn))

    def others(self) -> Scene:
        """Return conversations of the other models, without pictures."""
        return Scene(self.corpus.batch(OTHER_ROWS, OTHER_LENGTH), self.show([]))

    def show(self, shown: Sequence[Subject], black: int = 0) -> Tensor:
        """Return pictures; the first `black` of them are black on white."""
        if not shown:
            return torch.empty(0)
        drawn = [draw(self.rng, subject, ink=i < black) for i, subject in enumerate(shown)]
        pixels = np.stack([np.asarray(resized(picture)) for picture in drawn])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 127.5 - 1


def parts(subject: Subject) -> tuple[str, str, str]:
    return subject.colour, subject.shape, subject.place


def sighted_tokenizer(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy with the tokens of pictures."""
    sighted = Tokenizer.from_str(tokenizer.to_str())
    sighted.add_tokens([AddedToken(token, special=True, normalized=False) for token in MEDIA])
    return sighted
