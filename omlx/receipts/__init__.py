"""Receipts: kept inputs and hashes of an answer, to decode it again and compare."""
