"""Old names, until all rooms import the new ones."""

from apood.tokens.loader import Resident
from apood.tokens.loader import copy_to_device as copied
from apood.tokens.loader import gather_sequences as gathered
from apood.tokens.loader import has_room_for as room_for
from apood.tokens.loader import place_on_device as placed

__all__ = ["Resident", "copied", "gathered", "placed", "room_for"]
