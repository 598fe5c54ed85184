"""`python -m lab.bench http`: the same requests through a socket and without one."""
