"""How JSON is spelled that a grammar binds, as options of llguidance.

White space is fixed to what Python's `json.dumps` writes, unless the schema says otherwise (`x-guidance`): one spelling
leaves more tokens that must come, and no room for a model to go on with blanks for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

SPACING: Final[JsonCompileOptions] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
LENIENT: Final[JsonCompileOptions] = {"lenient": True}
"""Keywords that nobody enforces are passed over."""
