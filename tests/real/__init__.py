"""Models that people use, over real sockets: `make test-real` brings them and runs these tests."""
