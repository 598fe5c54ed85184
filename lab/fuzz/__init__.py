"""Fuzzing: the server answers or refuses every request without a 500, a hang, a leaked request or
memory growth.
"""
