"""RoPE parameters of a config, in the keys that mlx-lm's architecture reads.

transformers 5 writes `rope_parameters`, one object or one per layer type, in place of `rope_theta`,
`rope_scaling`, `partial_rotary_factor` and a second base for sliding windows. Parameters ignored by
the architecture are a reason not to load the model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any, Final

from omlx.errors import Reason
from omlx.models.library.sources import RopeFacts, has_rotations, module_of, rope_facts

INNER_CONFIGS: Final = ("text_config", "llm_config")
"""Keys of the text model's config in a vision-language config."""
PARAMETERS: Final = "rope_parameters"
SCALING: Final = "rope_scaling"
_THETA: Final = "rope_theta"
_PARTIAL: Final = "partial_rotary_factor"
ORIGINAL: Final = "original_max_position_embeddings"
_KINDS: Final = ("rope_type", "type")

_PLAIN: Final = frozenset({"default", "mrope"})
"""Scalings that leave text positions unchanged."""
_DEFAULT_THETA: Final = 10_000
_OTHER_NAMES: Final = {
    _THETA: ("rotary_emb_base", "rope_freq_constant", "rope_embedding_base"),
    _PARTIAL: ("rotary_pct",),
}
"""Older key names, still read by some architectures of mlx-lm."""
_LOCAL_THETAS: Final = ("rope_local_base_freq", "rope_local_theta", "swa_rope_theta")
"""Bases of sliding-window layers, in architectures with a second base."""
_BY_LAYER_TYPE: Final = frozenset({"gemma4", "gemma4_text", "laguna", "mellum", "spark2_5"})
"""Architectures that read `rope_parameters` with an object per layer type."""
_PARTIAL_BY_LAYER_TYPE: Final = frozenset({"laguna", "spark2_5"})
"""Architectures that read the share of rotated dimensions at any scaling."""
_UNSCALED_WINDOWS: Final = frozenset({"olmo3"})
"""Architectures that scale positions in full attention only."""


def rope_overrides(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config keys to replace so that mlx-lm reads the RoPE parameters.

    Parameters refused by `rope_reason` are unchanged.
    """
    changed: dict[str, Any] = {}
    for inner, part, facts in _parts(config):
        values = _translated(part, facts)
        if isinstance(values, Reason) or not values:
            continue
        changed |= values if inner is None else {inner: {**part, **values}}
    return changed


def rope_reason(config: Mapping[str, Any]) -> Reason | None:
    """Return the first RoPE parameter that mlx-lm would ignore, as a reason; None without any."""
    for _, part, facts in _parts(config):
        values = _translated(part, facts)
        if isinstance(values, Reason):
            return values
        reason = _ignored({**part, **values}, facts)
        if reason is not None:
            return reason
    return None


def scaling_of(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of full attention in either form; empty without any."""
    for key in (SCALING, PARAMETERS):
        values = part.get(key)
        if isinstance(values, Mapping) and values:
            nested = values.get("full_attention")
            return nested if isinstance(nested, Mapping) else values
    return {}


def kind_of_scaling(values: Mapping[str, Any]) -> str:
    """Return the type of a scaling; `default` if unnamed."""
    return next((str(values[key]) for key in _KINDS if values.get(key)), "default")


def _parts(config: Mapping[str, Any]) -> Iterator[tuple[str | None, Mapping[str, Any], RopeFacts]]:
    """Yield (key, part, facts) for the config and its text model's part."""
    outer = module_of(config.get("model_type"))
    facts = None if outer is None else rope_facts(outer)
    if facts is not None:
        yield None, config, facts
    for key in INNER_CONFIGS:
        part = config.get(key)
        if not isinstance(part, Mapping):
            continue
        inner = module_of(part.get("model_type"))
        # A wrapper with rotations of its own computes them itself, others leave it to the module.
        if inner is not None and not (outer and has_rotations(outer)):
            facts = rope_facts(inner)
        if facts is not None:
            yield key, part, facts
        return


def _translated(part: Mapping[str, Any], facts: RopeFacts) -> dict[str, Any] | Reason:
    """Return the keys to change in a part, or a reason if its parameters are inexpressible."""
    given, scaled = _object(part, PARAMETERS), _object(part, SCALING)
    if not given and _THETA in scaled:
        given, scaled = scaled, {}
    if not given and facts.newer and part.get(_THETA) is not None:
        given = {key: part[key] for key in (_THETA, _PARTIAL) if part.get(key) is not None}
    if facts.name in _BY_LAYER_TYPE:
        return _by_layer_type({**given, **scaled}, part, facts)
    if not given:
        return _completed(scaled, part)
    layers = _nested(given, part)
    if not layers:
        return _flat({**given, **scaled}, part, facts)
    return _layered(layers, part, facts)


def _layered(
    layers: Mapping[str, Mapping[str, Any]], part: Mapping[str, Any], facts: RopeFacts
) -> dict[str, Any] | Reason:
    """Return flat keys for parameters by layer type, or the reason why none fit."""
    first, *others = layers.values()
    local = [key for key in _LOCAL_THETAS if key in facts.keys]
    if all(other == first for other in others):
        return _flat(first, part, facts) | dict.fromkeys(local, first.get(_THETA, _DEFAULT_THETA))
    if {_PARTIAL + "s", "yarn_only_types"} <= facts.keys and _layer_types(part):
        return _lists(layers, part)
    full, sliding = layers.get("full_attention"), layers.get("sliding_attention")
    if full is not None and sliding is not None and len(layers) == 2:
        base = sliding.get(_THETA, _DEFAULT_THETA)
        plain = kind_of_scaling(sliding) in _PLAIN
        alike = full.get(_PARTIAL) == sliding.get(_PARTIAL)
        if plain and alike and local:
            return _flat(full, part, facts) | dict.fromkeys(local, base)
        if plain and alike and facts.name in _UNSCALED_WINDOWS and full.get(_THETA) == base:
            return _flat(full, part, facts)
    return _reason(PARAMETERS, layers, facts)


def _flat(given: Mapping[str, Any], part: Mapping[str, Any], facts: RopeFacts) -> dict[str, Any]:
    """Return `rope_theta`, `rope_scaling` and so on for one object of parameters."""
    theta = given.get(_THETA, part.get(_THETA))
    factor = given.get(_PARTIAL, part.get(_PARTIAL))
    kind = kind_of_scaling(given)
    scaling = None
    if kind not in _PLAIN:
        scaling = {key: value for key, value in given.items() if key != _THETA}
        scaling |= dict.fromkeys(_KINDS, kind)
    parameters = dict(given)
    values: dict[str, Any] = {SCALING: scaling, PARAMETERS: parameters}
    for key, value in ((_THETA, theta), (_PARTIAL, factor)):
        if value is not None:
            parameters[key] = value
            names = (key, *(name for name in _OTHER_NAMES[key] if name in facts.keys))
            values |= dict.fromkeys(names, value)
    if ORIGINAL in given and ORIGINAL not in part:
        values[ORIGINAL] = given[ORIGINAL]
    width = _head_dim(part)
    is_number = isinstance(factor, int | float) and isfinite(factor)
    if "rotary_dim" in facts.keys and part.get("rotary_dim") is None and is_number:
        values |= {} if width is None else {"rotary_dim": int(width * factor)}
    return values | _completed(scaling or {}, {**part, **values})


def _completed(scaling: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return `rope_scaling` with the original length that transformers takes from the config."""
    kind = kind_of_scaling(scaling)
    if ORIGINAL in scaling or kind not in ("yarn", "longrope", "su", "llama3"):
        return {}
    length = part.get(ORIGINAL)
    if length is None and kind == "yarn":
        length = part.get("max_position_embeddings")
    return {} if length is None else {SCALING: {**scaling, ORIGINAL: length}}


def _by_layer_type(
    given: Mapping[str, Any], part: Mapping[str, Any], facts: RopeFacts
) -> dict[str, Any] | Reason:
    """Return `rope_parameters` with an object per layer type, or a reason."""
    if not given:
        return {}
    layers = _nested(given, part)
    for values in layers.values() or (given,):
        kind = kind_of_scaling(values)
        if kind not in (*_PLAIN, *facts.types):
            return _reason(PARAMETERS, values, facts)
        reads_partial = kind == "proportional" or facts.name in _PARTIAL_BY_LAYER_TYPE
        if values.get(_PARTIAL) not in (None, 1) and not reads_partial:
            return _reason(_PARTIAL, values[_PARTIAL], facts)
    if layers:
        return {}
    types = _layer_types(part) or {"full_attention", "sliding_attention"}
    return {PARAMETERS: {name: dict(given) for name in sorted(types)}}


def _lists(layers: Mapping[str, Mapping[str, Any]], part: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of an architecture with a value per layer."""
    scaled = {name: one for name, one in layers.items() if kind_of_scaling(one) not in _PLAIN}
    scaling = next(iter(scaled.values()), None)
    by_layer = [layers.get(str(name), {}) for name in part["layer_types"]]
    return {
        _THETA: [one.get(_THETA, _DEFAULT_THETA) for one in by_layer],
        _PARTIAL + "s": [one.get(_PARTIAL, 1.0) for one in by_layer],
        SCALING: None if scaling is None else {**scaling, "type": kind_of_scaling(scaling)},
        "yarn_only_types": sorted(scaled),
    }


def _ignored(part: Mapping[str, Any], facts: RopeFacts) -> Reason | None:
    """Return the first effective parameter of a part that is not read."""
    if not facts.rotates or facts.name in _BY_LAYER_TYPE:
        return None
    theta, factor = part.get(_THETA), part.get(_PARTIAL)
    whole = PARAMETERS in facts.keys
    if theta not in (None, _DEFAULT_THETA) and not whole and not _reads(_THETA, facts):
        return _reason(_THETA, theta, facts)
    other_width = {"rotary_dim", "qk_rope_head_dim", _PARTIAL + "s"} & facts.keys
    if factor not in (None, 1) and not (whole or other_width or _reads(_PARTIAL, facts)):
        return _reason(_PARTIAL, factor, facts)
    scaling = _object(part, SCALING) or (_object(part, PARAMETERS) if whole else {})
    kind = kind_of_scaling(scaling)
    if kind in _PLAIN or (kind == "dynamic" and "alpha" not in scaling):
        return None  # dynamic scaling begins behind the declared length, where requests end
    readable = SCALING in facts.keys or (whole and PARAMETERS in part)
    if not readable or kind not in facts.types:
        return _reason(SCALING, scaling, facts)
    return None


def _reads(key: str, facts: RopeFacts) -> bool:
    return not facts.keys.isdisjoint((key, *_OTHER_NAMES[key]))


def _reason(key: str, value: object, facts: RopeFacts) -> Reason:
    text = json.dumps(value, default=str)
    return Reason("model.rope", {"key": key, "value": text[:200], "architecture": facts.name})


def _object(part: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = part.get(key)
    return value if isinstance(value, Mapping) else {}


def _nested(given: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the parameters of each layer type of a model; empty for a flat object."""
    layers = {key: value for key, value in given.items() if isinstance(value, Mapping)}
    return {name: layers[name] for name in layers.keys() & _layer_types(part)} or layers


def _layer_types(part: Mapping[str, Any]) -> set[str]:
    types = part.get("layer_types")
    return {str(name) for name in types} if isinstance(types, list) else set()


def _head_dim(part: Mapping[str, Any]) -> int | None:
    """Return the head dimension; None if the config has none."""
    hidden, heads, width = map(part.get, ("hidden_size", "num_attention_heads", "head_dim"))
    if isinstance(width, int):
        return width
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0:
        return hidden // heads
    return None
