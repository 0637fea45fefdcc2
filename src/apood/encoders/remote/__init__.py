"""Tokens from a running model server: its protocol, and the encoder that asks it."""
