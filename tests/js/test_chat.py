"""The modules of the chat page that need no page, in Node."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TESTS = sorted((Path(__file__).parent / "chat").glob("*.test.js"))


# In CI nothing is skipped.
@pytest.mark.skipif(shutil.which("node") is None and not os.environ.get("CI"), reason="needs node")
def test_modules_of_the_chat_page() -> None:
    assert TESTS
    command = ["node", "--test", *map(str, TESTS)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout
