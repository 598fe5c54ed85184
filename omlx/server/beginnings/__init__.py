"""Beginnings of prompts that return, such as system message and tools of an agent."""
