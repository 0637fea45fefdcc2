"""An encoder and a detector as one thing: from texts to decisions."""
