"""Models in GGUF files: checked, and converted to folders that mlx-lm loads."""
