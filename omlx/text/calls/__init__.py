"""Tool calls: formats of model families, parsers, and grammars that enforce them.

A family is data: a `CallFormat` in the table of `markup`, chosen by the chat template.
"""
