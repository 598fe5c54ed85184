"""Tool calls: how each model family writes them, how they are parsed, and grammars that enforce
them.

A family is data: a `CallFormat` in the table of `markup`, which chooses it by the chat template.
"""
