"""The prompt after which a reranker answers yes or no about one document.

Qwen3-Reranker was released with its format in its description only (Zhang et al., 2025,
arXiv:2506.05176); later rerankers have it in their chat template, with the roles `query` and
`document`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from omlx.errors import BadRequest, Param
from omlx.text.encode import check_length, encode
from omlx.text.template_process import render_template

if TYPE_CHECKING:
    from mlx_lm.tokenizer_utils import TokenizerWrapper

QWEN_INSTRUCTION: Final = (
    "Given a web search query, retrieve relevant passages that answer the query"
)
_QWEN: Final = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and "
    'the Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n'
    "<|im_start|>user\n<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
)


def qwen_prompt(query: str, document: str, instruction: str | None) -> str:
    """Return the prompt of Qwen3-Reranker."""
    return _QWEN.format(instruction=instruction or QWEN_INSTRUCTION, query=query, document=document)


def template_prompt(
    tokenizer: TokenizerWrapper, query: str, document: str, instruction: str | None
) -> str:
    """Return the prompt that the model's chat template makes; the instruction is its system
    message.

    Raises BadRequest with the template's own error.
    """
    messages = [
        {"role": "query", "content": query},
        {"role": "document", "content": document},
    ]
    if instruction is not None:
        messages.insert(0, {"role": "system", "content": instruction})
    try:
        return render_template(tokenizer, messages, {}, add_generation_prompt=True)
    except BadRequest:
        raise
    except Exception as error:  # of any type: a template is a program, and some are Python
        detail = str(error) or type(error).__name__
        raise BadRequest("template.failed", param="model", detail=detail) from error


def encode_document(tokenizer: TokenizerWrapper, prompt: str, limit: int, at: int) -> list[int]:
    """Return the ids of the prompt about the document with index `at`.

    Raises BadRequest, naming the document, for one that has more than `limit` tokens.
    """
    try:
        tokens = encode(tokenizer, prompt, limit, special=False)
    except BadRequest as error:
        raise _too_long(at, error.params["tokens"], limit) from error
    if len(tokens) > limit:
        raise _too_long(at, len(tokens), limit)
    return tokens


def encode_pair(
    tokenizer: TokenizerWrapper, query: str, document: str, limit: int, at: int
) -> tuple[list[int], list[int]]:
    """Return the ids of query and document with the tokens between them, and for each whether it is
    of the first part (0) or of the second. Raises as `encode_document`.
    """
    try:
        check_length(tokenizer, query + document, limit, "documents")
    except BadRequest as error:
        raise _too_long(at, error.params["tokens"], limit) from error
    encoded = tokenizer._tokenizer(query, document, return_token_type_ids=True)
    tokens = list(encoded["input_ids"])
    if len(tokens) > limit:
        raise _too_long(at, len(tokens), limit)
    return tokens, list(encoded["token_type_ids"])


def _too_long(at: int, tokens: Param, limit: int) -> BadRequest:
    field = f"documents[{at}]"
    return BadRequest("rerank.too_long", param=field, field=field, tokens=tokens, limit=limit)
