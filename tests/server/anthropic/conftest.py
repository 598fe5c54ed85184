from __future__ import annotations

import pytest
from anthropic import Anthropic


@pytest.fixture
def claude(spelling_claude: Anthropic) -> Anthropic:
    return spelling_claude
