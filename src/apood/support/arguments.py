"""Old names, until all rooms import the new ones."""

from apood.support.checks import check_choice as one_of
from apood.support.checks import check_integer as whole_number
from apood.support.checks import check_number as number

__all__ = ["number", "one_of", "whole_number"]
