"""Ragged tokens: in memory (`batch`), on disk (`store`, `writer`), as sources (`source`) and in training (`loader`)."""
