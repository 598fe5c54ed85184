"""Measurements for those who change omlx: upper bounds, larger models, other servers, documents.

Not in the wheel. Builds on `omlx.bench`, which holds what a user measures.
"""
