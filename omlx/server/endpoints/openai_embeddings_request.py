"""OpenAI's embeddings: the body of a request, and vectors as JSON. Pure."""

from __future__ import annotations

import struct
from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from omlx.server.dialects.openai.completions_request import Given, separate
from omlx.server.endpoints.embedding import Embedded, Input
from omlx.server.request.dialect import Json
from omlx.server.request.fields import Body, Text, read


class EmbeddingRequest(Body):
    """The body of POST /v1/embeddings."""

    model: Text
    input: Given
    dimensions: Annotated[int, Field(ge=1)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    user: str | None = None

    @property
    def inputs(self) -> tuple[Input, ...]:
        return separate(self.input)

    def body(self, embedded: Embedded) -> Json:
        data = [
            {"object": "embedding", "index": i, "embedding": self._encoded(vector)}
            for i, vector in enumerate(embedded.vectors)
        ]
        usage = {"prompt_tokens": embedded.tokens, "total_tokens": embedded.tokens}
        return {"object": "list", "data": data, "model": embedded.model, "usage": usage}

    def _encoded(self, vector: Sequence[float]) -> list[float] | str:
        if self.encoding_format == "base64":
            return b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
        return list(vector)


def parse(body: bytes) -> EmbeddingRequest:
    """Raises BadRequest, naming the field, for an invalid body."""
    return read(EmbeddingRequest, body)
