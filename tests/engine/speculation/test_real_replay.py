"""What SmolLM2 answered to 300 questions, played by the real speculator on machines where little
pays, and on machines where much does. Sequences of 312 answers of 16 to 280 tokens.
"""




HEAD = 0.08
"""A pass of the head, in plain steps: one layer of thirty, and 8,192 of 49,152 rows."""
