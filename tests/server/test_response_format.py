from __future__ import annotations

import json

import pytest

from omlx.server.request.structured_output import ANY_OBJECT, structured_output


@pytest.mark.parametrize("more", [{}, {"schema": None}, {"schema": ""}])
def test_an_object_without_a_schema_is_any_object(more: dict[str, object]) -> None:
    form = structured_output({"type": "json_object", **more}, "response_format")
    assert form is not None
    assert json.loads(form.text) == ANY_OBJECT
