"""Try a draft: what pays on this machine, measured with the requests that users send, and said in one sentence."""
