"""The text encoder and the parts it is made of."""
