"""Training the backbones that the paper trains itself: a translator and a classifier of sounds."""
