"""Ollama's API: models, chat, completions, embeddings, downloads."""
