"""`omlx doctor --bench`: one page of measurements of a machine, for a report."""
