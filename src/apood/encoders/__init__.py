"""Encoders: from texts and sounds to tokens."""
