"""The report: one page about a detector, with a JSON file of the same content."""
