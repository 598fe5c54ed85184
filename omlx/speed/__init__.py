"""Benchmark of a model in a running server: prefill and decode by prompt length and streams.

The requests go through the same engine as those of users, who go first.
"""
