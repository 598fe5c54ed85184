"""omlx: a server for language models on MLX with continuous batching and speculative decoding.

The dashboard is in admin/ beside this package and is installed as `omlx.admin`.
"""

__version__ = "0.1.0"
