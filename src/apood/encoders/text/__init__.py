"""The text encoder and its parts: tokenising, batching, the model, states, generation."""
