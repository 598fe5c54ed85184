"""Parts of pages that are fetched again and again: rendered once for each change of their data."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from fastapi import Request
from starlette.responses import HTMLResponse, Response

from .preferences import language_of

MAX_PARTS: Final = 32
"""Rendered parts to keep for each route: one for each address and language."""

P = TypeVar("P")


@dataclass(frozen=True, slots=True)
class _Rendered(Generic[P]):
    page: P
    content: str
    tag: str


class PartCache(Generic[P]):
    """The newest content of each part. A page that equals the one before is not rendered again.

    The data of a page must therefore not change after it was returned: frozen dataclasses.
    """

    def __init__(self, render: Callable[[Request, P], str]) -> None:
        self._render = render
        self._parts: OrderedDict[tuple[str, str], _Rendered[P]] = OrderedDict()

    def answer(self, request: Request, page: P) -> Response:
        """Answer 304 if the browser has this content already."""
        part = self._rendered(request, page)
        headers = {"ETag": part.tag, "Content-Language": language_of(request)}
        if request.headers.get("if-none-match") == part.tag:
            return Response(status_code=304, headers=headers)
        return HTMLResponse(part.content, headers=headers)

    def _rendered(self, request: Request, page: P) -> _Rendered[P]:
        key = (str(request.url), language_of(request))
        part = self._parts.pop(key, None)
        if part is None or part.page != page:
            content = self._render(request, page)
            tag = hashlib.sha256(content.encode()).hexdigest()[:16]
            part = _Rendered(page, content, f'"{tag}"')
        self._parts[key] = part
        if len(self._parts) > MAX_PARTS:
            self._parts.popitem(last=False)
        return part
