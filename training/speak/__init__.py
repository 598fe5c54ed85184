"""Drafts for SmolLM2-135M-Instruct: a small llama, and heads on its hidden states.

    data (CPU) ─► requests, documents ─► synthesis: the target answers ─► training ─► measurement

All three learn in one loop from the target's distribution, whose pass they share.
"""
