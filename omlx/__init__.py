"""omlx: a server for language models on MLX that batches several requests and speculates on one."""

__version__ = "0.1.0"
