"""Receipts: what an answer was computed from, kept so that it can be decoded again and compared."""
