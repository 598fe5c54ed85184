"""Tool calls: how each model family writes them, how they are parsed, and grammars that enforce
them.

A family is one module in `families` with a `CallFormat`; `markup` chooses it by the chat template.
"""
