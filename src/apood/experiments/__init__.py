"""The demo and the paper's experiments, one module each."""
