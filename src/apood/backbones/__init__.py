"""Training of the paper's own models: a translator and a sound classifier."""
