"""Old names, until all rooms import the new ones."""

from apood.tokens.batch import decode_texts as channel_texts
from apood.tokens.batch import encode_texts as text_channel

__all__ = ["channel_texts", "text_channel"]
