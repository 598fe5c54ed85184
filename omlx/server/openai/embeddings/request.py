"""OpenAI's embeddings: the body of a request, and vectors as JSON. Pure."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from math import sqrt
from typing import Annotated, Final, Literal

from pydantic import Field

from omlx.errors import BadRequest
from omlx.server.dialect import Json
from omlx.server.errors import field_error
from omlx.server.fields import Body, Text, read
from omlx.server.openai.completions.request import Given, separate

MAX_INPUTS: Final = 2048


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings."""

    model: Text
    input: Given
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    @property
    def inputs(self) -> tuple[str | tuple[int, ...], ...]:
        """Raises BadRequest for too many."""
        inputs = separate(self.input)
        if len(inputs) > MAX_INPUTS:
            raise field_error("request.too_many", "input", count=len(inputs), limit=MAX_INPUTS)
        return inputs

    def body(self, model: str, vectors: Sequence[Sequence[float]], tokens: int) -> Json:
        data = [
            {"object": "embedding", "index": i, "embedding": self._encoded(vector)}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}

    def cut(self, vector: Sequence[float], *, normalize: bool) -> Sequence[float]:
        """Keep the requested number of dimensions, then scale to length 1 if `normalize`.

        Raises BadRequest for more dimensions than the vector has.
        """
        if self.dimensions is not None:
            if self.dimensions > len(vector):
                raise BadRequest("embedding.dimensions", param="dimensions", most=len(vector))
            vector = vector[: self.dimensions]
        length = sqrt(sum(value * value for value in vector)) if normalize else 0.0
        return [value / length for value in vector] if length else vector

    def _encoded(self, vector: Sequence[float]) -> list[float] | str:
        if self.encoding_format == "base64":
            return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return list(vector)


def parse(body: bytes) -> EmbeddingRequest:
    """Raises BadRequest, naming the field, for an invalid body."""
    return read(EmbeddingRequest, body)
