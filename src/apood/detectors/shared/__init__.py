"""What several methods share: mean pooling, length law, log distances, side channels."""
