"""Measures speculation against plain decoding, mode by mode and workload by workload. A program, never a test."""
