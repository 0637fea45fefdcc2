"""Which tokens made a sequence suspicious."""
