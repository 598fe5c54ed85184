from __future__ import annotations

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper

from tests.text import tokenizers


@pytest.fixture(scope="session")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    return tokenizers.decode_byte_level(tmp_path_factory.mktemp("bpe"))


@pytest.fixture(scope="session")
def spm(tmp_path_factory: pytest.TempPathFactory) -> TokenizerWrapper:
    return tokenizers.byte_fallback(tmp_path_factory.mktemp("spm"))
