"""Trained heads (multi-token prediction) of models: their files and their layers."""
