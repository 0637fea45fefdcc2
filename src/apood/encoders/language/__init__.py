"""What a text model computes for a batch: its passes, what it generates, log-probabilities; used by `TextEncoder`."""
