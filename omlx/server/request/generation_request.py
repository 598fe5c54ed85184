"""Requests in no API's dialect, their profile and settings, and their priority.

Titles, recaps, suggestions and sub-agents, for which no user waits, are in the background: their
requests give way to others. The guess, by client and shape, is shown with the request; the field
`priority`, or a `service_tier` other than `auto`, overrides a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from omlx.draft_length import DraftLength
from omlx.engine.speculation.strategy import Strategy, parse
from omlx.engine.types import Request
from omlx.errors import Reason
from omlx.models.catalog.catalog import Profile
from omlx.models.pool.served import ServedModel
from omlx.records import AppliedSetting, PromptText
from omlx.settings.layers import Source
from omlx.settings.schema import Settings
from omlx.text.grammar import StructuredOutput
from omlx.text.template.render import Message, texts_of
from omlx.text.tools import ToolUse
from omlx.tools.tool import Toolset

SAMPLING: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "xtc_probability",
    "xtc_threshold",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Sampling parameters of requests, of settings and of a model's generation_config.json."""

NO_LIMIT: Final = -1
BUDGET: Final = "thinking_budget"
"""The field, and the template variable."""
LONG_TEXT: Final = 1 << 16
"""Characters beyond which a text is long, and ids beyond which a list of them is."""
TOOL_TEXT: Final = 1_000
"""Characters of text — a tool takes about as long."""


@dataclass(frozen=True, slots=True)
class DialectDefaults:
    """An API's meaning of absent fields; a profile precedes, settings follow."""

    max_tokens: int | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServerTools:
    """Server tools of a request. `choose` makes the tool use with their functions.

    `approved`: ids of past calls to make before the answer. `max_calls` None: the server's bound.
    """

    sets: tuple[Toolset, ...]
    choose: Callable[[Sequence[dict[str, Any]]], ToolUse | None]
    approved: frozenset[str] = frozenset()
    max_calls: int | None = None


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """A request, whatever its dialect.

    None, or a name missing from `sampling`, leaves a parameter to the settings and the model's own
    defaults.
    Either `messages` of a conversation, which the model's template renders, or `prompts`, texts or
    ids that are continued as they are. `suffix` follows the gap that the output fills (infill).
    `prediction` is a text that the answer is expected to resemble (predicted outputs). `max_tokens`
    0 generates nothing, with `prewarm` for the sake of the prefix cache. `min_tokens`
    come before the first end token; with `ignore_eos` there is none. `thinking_budget` tokens of
    reasoning come at most; -1: any number. `warnings`: what of the body was left out; the answer
    repeats them. `mark_drafted`: texts say whether they were drafted. `receipt`: the
    answer has one, and is kept to be verified. `profile`: id of the profile filled in.
    `defaults` are of absent fields. `truncates`: a conversation beyond the context loses its
    oldest turns, and with `cuts_text` the last turn or a prompt the beginning of its text.
    `fallback`: why `model` is another one than requested. `call_id` maps ids of calls to the
    dialect's. `priority` None: a guess; a lower number is sooner. `timeout_s`: seconds from
    arrival to the end. `server_tools`: `tools` are complete with those alone.
    """

    messages: Sequence[Message] = ()
    model: str | None = None
    profile: str | None = None
    draft_model: str | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    tools: ToolUse | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    suffix: str = ""
    continue_last: bool = False
    sampling: Mapping[str, float] = field(default_factory=dict)
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    n: int = 1
    max_tokens: int | None = None
    prewarm: bool = False
    defaults: DialectDefaults = field(default_factory=DialectDefaults)
    min_tokens: int = 0
    ignore_eos: bool = False
    thinking_budget: int | None = None
    stop_strings: tuple[str, ...] = ()
    top_logprobs: int | None = None
    prompt_logprobs: int | None = None
    speculation: Strategy | None = None
    draft_length: DraftLength = field(default_factory=DraftLength)
    prediction: str = ""
    structured_output: StructuredOutput | None = None
    warnings: tuple[Reason, ...] = ()
    mark_drafted: bool = False
    receipt: bool | None = None
    priority: int | None = None
    timeout_s: float | None = None
    truncates: bool = False
    cuts_text: bool = False
    fallback: Reason | None = None
    call_id: Callable[[str], str] = str
    server_tools: ServerTools | None = None

    @property
    def long(self) -> bool:
        """Whether its texts and tools take long to turn into tokens and grammars."""
        contents = [message.get("content") for message in self.messages]
        texts = [text for content in contents for text in texts_of(content)]
        size = sum(len(text) for text in (*texts, *self.prompts) if isinstance(text, str))
        size += len(self.prediction)
        if self.structured_output is not None:
            size += len(self.structured_output.text)
        if self.tools is not None:
            size += TOOL_TEXT * len(self.tools.functions)
        return size > LONG_TEXT

    @property
    def has_parts(self) -> bool:
        """Whether a message shows an image or a file: other contents are a text."""
        return any(isinstance(message.get("content"), list) for message in self.messages)

    @property
    def continues(self) -> bool:
        """Whether results of tools may follow the answer, the only choice, in texts alone."""
        plain = not (self.prewarm or self.has_parts or self.truncates)
        return self.tools is not None and self.n == 1 and plain

    @property
    def after_tool(self) -> bool:
        """Whether the result of a tool ends the conversation."""
        return bool(self.messages) and self.messages[-1]["role"] == "tool"

    @property
    def forced_call(self) -> bool:
        """Whether the answer must be a tool call."""
        return self.tools is not None and self.tools.forced


def sampling_fields(source: object) -> dict[str, float]:
    """The sampling parameters that settings, or the body of a request, set."""
    values = {name: getattr(source, name) for name in SAMPLING}
    return {name: value for name, value in values.items() if value is not None}


MAX_CHARACTERS: Final = 4000


def prompt_texts(request: GenerationRequest) -> tuple[PromptText, ...]:
    """Return the end of all messages or prompts, at most `MAX_CHARACTERS` long.

    Token ids have no text.
    """
    texts = [PromptText("", text) for text in request.prompts if isinstance(text, str)]
    for message in request.messages:
        content = "\n".join(texts_of(message.get("content")))
        texts.append(PromptText(message["role"], content))
    kept: list[PromptText] = []
    left = MAX_CHARACTERS
    while texts and left > 0:
        newest = texts.pop()
        kept.insert(0, replace(newest, text=newest.text[-left:]))
        left -= len(newest.text)
    return tuple(kept)


def with_profile(request: GenerationRequest, profile: Profile | None) -> GenerationRequest:
    """Add the values of a profile, as if the request had sent them; those of the request win."""
    if profile is None:
        return request
    settings, variables = profile.settings, profile.settings.chat_template_kwargs or {}
    strategy, receipt = request.speculation, request.receipt
    if strategy is None and request.draft_model is None and "speculation" in profile.values:
        strategy = parse(settings.speculation)
    if receipt is None and "receipt" in profile.values:
        receipt = settings.receipt
    return replace(
        request,
        messages=_instructed(request.messages, settings.system_prompt),
        profile=profile.id,
        sampling={**sampling_fields(settings), **request.sampling},
        max_tokens=first(request.max_tokens, settings.max_tokens),
        thinking_budget=first(request.thinking_budget, settings.thinking_budget),
        template_variables={**variables, **request.template_variables},
        speculation=strategy,
        draft_length=request.draft_length.over(profile.draft_length),
        receipt=receipt,
    )


def first(own: int | None, default: int | None) -> int | None:
    """Return `own`; `default` if it is None."""
    return default if own is None else own


def _instructed(messages: Sequence[Message], prompt: str | None) -> Sequence[Message]:
    """Put a profile's system prompt first, unless there is a system message."""
    if prompt is None or not messages or messages[0]["role"] == "system":
        return messages
    return [{"role": "system", "content": prompt}, *messages]


def with_settings(request: GenerationRequest, settings: Settings) -> GenerationRequest:
    """Add the model's thinking budget and template variables, and the dialect's defaults; those of
    the request win.

    A budget is a template variable too; 0 switches reasoning off.
    """
    budget = first(request.thinking_budget, settings.thinking_budget)
    if request.thinking_budget == NO_LIMIT:
        budget = None
    variables = dict(settings.chat_template_kwargs or {})
    if budget is not None:
        variables[BUDGET] = budget
    if budget == 0:
        variables["enable_thinking"] = False
    variables |= {**request.defaults.template_variables, **request.template_variables}
    return replace(
        request,
        thinking_budget=budget,
        template_variables=variables,
        max_tokens=first(request.max_tokens, request.defaults.max_tokens),
    )


BACKGROUND: Final = 10
URGENT: Final = -10
TIERS: Final[dict[str, int | None]] = {
    "auto": None,
    "default": 0,
    "standard": 0,
    "standard_only": 0,
    "scale": 0,
    "flex": BACKGROUND,
    "priority": URGENT,
}
"""Priorities by OpenAI's and Anthropic's `service_tier`. None: as guessed."""

WAITED_FOR: Final = frozenset({"review", "compact"})
"""Sub-agents of Codex whose answer the user waits for."""

SUBAGENT: Final = "priority.guess.subagent"
SUGGESTION: Final = "priority.guess.suggestion"
TITLE: Final = "priority.guess.title"
RECAP: Final = "priority.guess.recap"

_HEAD: Final = 1_500
"""Characters of a text in which a program states the task."""

_MAKE: Final = r"\b(?:generat|creat|writ|provid|suggest|summari[sz])\w*\b"
_SYSTEM: Final = (
    (SUBAGENT, re.compile(r"You are (?:an agent|an? [\w, ]{4,60} specialist) for Claude Code")),
    (SUBAGENT, re.compile(r"^You are a file search specialist\b")),
    (TITLE, re.compile(r"\btitle generator\b", re.IGNORECASE)),
    (TITLE, re.compile(_MAKE + r"[^.\n]{0,80}\btitle\b", re.IGNORECASE)),
)
_USER: Final = (
    (SUGGESTION, re.compile(r"^\[SUGGESTION MODE\b")),
    (SUGGESTION, re.compile(r"^### Task:\s+You are an autocompletion system")),
    (
        TITLE,
        re.compile(r"^### Task:\s+(?:Generate|Suggest)\b.{0,80}\b(?:title|tags|questions)"),
    ),
    (
        TITLE,
        re.compile(
            _MAKE + r"[^\n]{0,100}\btitle\b[^\n]{0,60}\b(?:conversation|chat|thread|session)\b",
            re.IGNORECASE,
        ),
    ),
    (RECAP, re.compile(r"\bstepped away and is coming back\b")),
)
"""Kinds of requests by the beginnings of system messages and of last user messages."""

_WITH_TOOLS: Final = frozenset({SUBAGENT, SUGGESTION, RECAP})
"""Kinds whose requests may have tools; a title has none."""


def priority_of(request: GenerationRequest, subagent: str = "") -> tuple[int, Reason | None]:
    """Return the engine's number, lower is sooner, and the reason of a guess.

    `subagent` names the sender by header.
    """
    if request.priority is not None:
        return request.priority, None
    kind = guess(request, subagent)
    return (0, None) if kind is None else (BACKGROUND, Reason(kind))


def guess(request: GenerationRequest, subagent: str = "") -> str | None:
    """Return the kind of a background request as a code, or None."""
    if subagent and subagent not in WAITED_FOR:
        return SUBAGENT
    if not request.messages:
        return None
    system = [message for message in request.messages if message["role"] == "system"]
    texts = "\n".join(text for message in system for text in texts_of(message.get("content")))
    last = request.messages[-1]
    asked = "\n".join(texts_of(last.get("content"))) if last["role"] == "user" else ""
    for patterns, text in ((_SYSTEM, texts.lstrip()[:_HEAD]), (_USER, asked.lstrip()[:_HEAD])):
        for kind, pattern in patterns:
            if (kind in _WITH_TOOLS or request.tools is None) and pattern.search(text):
                return kind
    return None


REQUEST: Final = "request"
MODEL_FILES: Final = "model_files"
"""Sources that are no layer of settings: the request's own fields, generation_config.json."""


def applied_settings(
    sent: GenerationRequest, profile: Profile | None, served: ServedModel, request: Request
) -> tuple[AppliedSetting, ...]:
    """Return the settings of an engine's request, with the first source that sets each.

    `sent`: as the client sent it, before `profile` and settings were filled in.
    """
    return tuple(
        AppliedSetting(name, value, _source(name, sent, profile, served))
        for name, value in _values(sent, served, request)
    )


def _values(
    sent: GenerationRequest, served: ServedModel, request: Request
) -> Iterator[tuple[str, str]]:
    for name in SAMPLING:
        yield name, f"{getattr(request.sampling, name):g}"
    yield "seed", str(request.sampling.seed)
    if request.max_tokens is not None:
        yield "max_tokens", str(request.max_tokens)
    budget = first(sent.thinking_budget, served.speculation.settings.thinking_budget)
    if budget is not None:
        yield "thinking_budget", str(budget)
    yield "speculation", str(request.speculation.strategy)
    if served.draft is not None:
        yield "draft_model", served.draft


def _source(
    name: str, sent: GenerationRequest, profile: Profile | None, served: ServedModel
) -> str:
    if name in sent.sampling or getattr(sent, name, None) is not None:
        return REQUEST
    if profile is not None and name in profile.values:
        return Source.PROFILE
    source = served.speculation.sources.get(name, Source.BUILT_IN)
    if source is Source.BUILT_IN and name in served.sampling:
        return MODEL_FILES
    return source
