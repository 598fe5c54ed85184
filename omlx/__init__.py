"""omlx: a server for language models on MLX with continuous batching and speculative decoding."""

__version__ = "0.1.0"
