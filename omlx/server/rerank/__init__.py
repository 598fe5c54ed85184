"""The API of Cohere and Jina that orders documents by their relevance to a query."""
