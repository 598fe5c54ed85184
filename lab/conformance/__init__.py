"""Conformance of any server with OpenAI's chat API, checked from outside, over HTTP alone."""
