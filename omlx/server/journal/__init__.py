"""Answers that outlive the process: recorded on disk while they are generated, and kept after."""
