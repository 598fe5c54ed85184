"""Lists in pages, as OpenAI's API gives them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from omlx.errors import BadRequest
from omlx.server.dialect import Json
from omlx.server.fields import Body


class Page(Body):
    """Which part of a list is wanted: so many, behind that one, newest first unless asked otherwise."""

    order: Literal["asc", "desc"] = "desc"
    limit: Annotated[int, Field(ge=1, le=100)] = 20
    after: str | None = None

    def of(self, items: Sequence[Json]) -> Json:
        """The page as the API's object; `items` are the oldest first. Raises BadRequest for an `after` not in them."""
        ordered = list(items) if self.order == "asc" else list(reversed(items))
        if self.after is not None:
            places = {item["id"]: at for at, item in enumerate(ordered)}
            if self.after not in places:
                detail = f"there is no item '{self.after}'"
                raise BadRequest("request.value", param="after", field="after", detail=detail)
            ordered = ordered[places[self.after] + 1 :]
        data = ordered[: self.limit]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
        return {"object": "list", "data": data, "has_more": len(ordered) > len(data), **ends}
