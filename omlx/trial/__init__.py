"""*Try a draft*: measure what speculation gains with one model on this machine, and render a verdict.

The measured requests are ordinary ones, sent by the running server while no user needs the model.
"""
