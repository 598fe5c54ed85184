"""Other ways in which models write one call of `get_weather`, by family: arguments as JSON,
forgotten markers and parts of a header.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from omlx.text.calls.elements import TOKEN

_JSON: Final = '{"city": "Zürich", "days": 3}'
_CALL: Final = f'{{"name": "get_weather", "arguments": {_JSON}}}'
_PARAMETERS: Final = (
    "<parameter=city>\nZürich\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>"
)
_HARMONY: Final = f"<|message|>{_JSON}<|call|>"

WRITINGS: Final[Mapping[str, Sequence[str]]] = {
    "qwen3_coder": (
        f"<tool_call>\n<function=get_weather>\n{_JSON}\n</function>\n</tool_call>",
        f"<tool_call>\n<function=get_weather\n{_PARAMETERS}\n</tool_call>",
        f"<function=get_weather>\n{_PARAMETERS}",
        f"<tool_call>\n{_CALL}\n</tool_call>",
    ),
    "seed_oss": (
        f"<seed:tool_call>\n<function=get_weather>{_JSON}</function>\n</seed:tool_call>",
        "<function=get_weather><parameter=city>Zürich</parameter><parameter=days>3</parameter>"
        "</function>",
    ),
    "glm": (
        f"<tool_call>get_weather{_JSON}</tool_call>",
        f"<tool_call>get_weather\n{_JSON}\n</tool_call>",
        "<tool_call>get_weather<arg_key>city<arg_value>Zürich</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>",
    ),
    "k2_horizon": (
        f"<ifm|tool_calls>\n<ifm|tool_call>{_CALL}</ifm|tool_call>\n</ifm|tool_calls>",
        f"<ifm|tool_call>[{_CALL}]</ifm|tool_call>",
    ),
    "minimax_m2": (
        f'<minimax:tool_call>\n<invoke name="get_weather">\n{_JSON}\n</invoke>\n'
        "</minimax:tool_call>",
        '<invoke name="get_weather">\n<parameter name="city">Zürich</parameter>\n'
        '<parameter name="days">3</parameter>\n</invoke>',
        "<minimax:tool_call>\n<invoke name=get_weather>\n<parameter name=city>Zürich</parameter>\n"
        "<parameter name=days>3</parameter>\n</invoke>\n</minimax:tool_call>",
    ),
    "minimax_m3": (
        f'{TOKEN}<tool_call>\n{TOKEN}<invoke name="get_weather">{_JSON}{TOKEN}</invoke>\n'
        f"{TOKEN}</tool_call>",
    ),
    "muse_spark": (
        '<atem:function_calls>\n<atem:invoke name="get_weather">'
        f"{_JSON}</atem:invoke>\n</atem:function_calls>",
        '<atem:invoke name="get_weather">\n<atem:parameter name="city">Zürich</atem:parameter>\n'
        '<atem:parameter name="days">3</atem:parameter>\n</atem:invoke>',
    ),
    "minicpm5": (
        f'<function name="get_weather">{_JSON}</function>',
        "<function name=get_weather><param name=city>Zürich</param><param name=days>3</param>"
        "</function>",
    ),
    "deepseek_3_2": (
        f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n{_JSON}\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
    ),
    "hy3": (
        "<tool_calls:opensource>\n<tool_call:opensource>get_weather\n"
        "<arg_key:opensource>city</arg_key:opensource>\n"
        "<arg_value:opensource>Zürich</arg_value:opensource>\n"
        "<arg_key:opensource>days</arg_key:opensource>\n"
        "<arg_value:opensource>3</arg_value:opensource>\n"
        "</tool_call:opensource>\n</tool_calls:opensource>",
        "<tool_calls:opensource><tool_call:opensource>get_weather<tool_sep:opensource>"
        f"{_JSON}</tool_call:opensource></tool_calls:opensource>",
    ),
    "kimi_k3": (
        f'<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>{_JSON}'
        "<|close|>call<|sep|><|close|>tools<|sep|>",
        '<|open|>call tool="get_weather" index="1"<|sep|>'
        '<|open|>argument key="city" type="string"<|sep|>Zürich<|close|>argument<|sep|>'
        '<|open|>argument key="days" type="number"<|sep|>3<|close|>argument<|sep|>'
        "<|close|>call<|sep|>",
    ),
    "kimi_k2": tuple(
        f"<|tool_calls_section_begin|><|tool_call_begin|>{name}<|tool_call_argument_begin|>{_JSON}"
        "<|tool_call_end|><|tool_calls_section_end|>"
        for name in ("get_weather", "get_weather:0", "functions.get_weather")
    ),
    "gemma_4": (
        f"<|tool_call>call:get_weather{_JSON}<tool_call|>",
        '<|tool_call>call:get_weather{city:"Zürich",days:3}<tool_call|>',
        '<|tool_call>get_weather{city:<|"|>Zürich<|"|>,days:3}<tool_call|>',
        '<|tool_call>call: get_weather{city:<|"|>Zürich<|"|>,days:3}<tool_call|>',
        '<|tool_call>call:get_weather{"city":<|"|>Zürich<|"|>,"days":3}<tool_call|>',
    ),
    "function_gemma": (f"<start_function_call>call:get_weather{_JSON}<end_function_call>",),
    "lfm2": ('<|tool_call_start|>get_weather(city="Zürich", days=3)<|tool_call_end|>',),
    "mistral": (
        f"[TOOL_CALLS]get_weather{_JSON}",
        f"[TOOL_CALLS] get_weather [ARGS] {_JSON}",
        f"[TOOL_CALLS][{_CALL}]",
        f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{_JSON}",
    ),
    "deepseek_3_1": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"
        f"```json\n{_JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        f"<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{_JSON}<｜tool▁call▁end｜>",
    ),
    "functionary_3_1": (f"<function=get_weather{_JSON}</function>",),
    "functionary_3_2": (f">>>get_weather\n{_JSON}",),
    "llama_3": (
        f"<function=get_weather>{_JSON}</function>",
        f'<|python_tag|>{{"type": "function", "name": "get_weather", "parameters": {_JSON}}}',
        f'{{"type": "function", "function": {{"name": "get_weather", "parameters": {_JSON}}}}}',
    ),
    "json_tools": (
        f'<tool_call>\n{{"type": "function", "function": {_CALL}}}\n</tool_call>',
        f'<tool_call>\n{{"id": 1, "name": "get_weather", "arguments": {_JSON}}}\n</tool_call>',
        f"<tool_call>```json\n{_CALL}\n```</tool_call>",
    ),
    "granite_3": (f"<tool_call>[{_CALL}]",),
    "command_r": (f"Action: ```json\n{_CALL}\n```",),
    "solar": (
        f"<|tool_calls|><|tool_call:begin|>get_weather<|tool_call:args|>{_JSON}"
        "<|tool_call:end|><|calls|>",
        "<|tool_call:begin|>a<|tool_call:name|>get_weather"
        f"<|tool_call:args|>{_JSON}<|tool_call:end|>",
    ),
    "harmony": (
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json{_HARMONY}",
        f"<|channel|>commentary to= functions.get_weather json{_HARMONY}",
        f"<|channel|>commentary to=get_weather{_HARMONY}",
        f"<|channel|>commentary<|constrain|>json to=functions.get_weather{_HARMONY}",
        f"<|start|>assistant<|channel|>analysis to=functions.get_weather code{_HARMONY}",
        f" to=functions.get_weather<|channel|>commentary <|constrain|>json{_HARMONY}",
        f"to=functions.get_weather{_HARMONY}",
        f"commentary to=functions.get_weather{_HARMONY}",
        f"<|channel|>final<|channel|>commentary to=functions.get_weather{_HARMONY}",
        f"<|channel|>commentary to=functions.get_weather <|message|>[{_JSON}]<|end|>",
    ),
}
