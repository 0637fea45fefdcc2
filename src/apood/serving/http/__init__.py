"""The HTTP service: texts and token arrays in, scores and decisions out."""
