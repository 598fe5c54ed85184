"""Conversations to prompts, through the model's own chat template."""
