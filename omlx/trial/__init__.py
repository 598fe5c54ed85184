"""*Try a draft*: measure what speculation gains with a model on this machine; render a verdict.

The measured requests are ordinary ones, sent by the running server while no user needs the model.
"""
