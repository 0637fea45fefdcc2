"""Ragged tokens: in memory (`batch`), on disk (`store`), and how they are read (`source`, `loader`)."""
