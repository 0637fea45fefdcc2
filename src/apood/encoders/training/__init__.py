"""From data to a backbone: the models that the paper trains itself, as ordinary Hugging Face folders."""
