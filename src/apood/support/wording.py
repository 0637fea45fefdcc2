"""Old names, until all rooms import the new ones."""

from apood.support.checks import format_count as counted
from apood.support.checks import suggest_name as meant

__all__ = ["counted", "meant"]
