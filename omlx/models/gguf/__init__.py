"""GGUF models: checked, and converted to folders that mlx-lm loads."""
