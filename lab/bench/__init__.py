"""`python -m lab.bench COMMAND`: measurements for those who change omlx.

Upper bounds, larger models, other servers, HTTP, documents. Builds on `omlx.bench`, which holds
what a user measures.
"""
