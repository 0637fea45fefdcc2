"""The attacks in a short form. `make break` runs the long one."""

import pytest
from cli_calls import GOOD_CALLS, read_options
from run import ATTACKS, divide, divide_short, run_part
from workshop import Tally


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_breaks(name):
    tally = sum((run_part(part)[0] for part in divide_short(name)), Tally())
    assert not tally.failures, f"{tally}\n" + "\n".join(tally.failures[:5])
    assert sum(tally.counts.values()) >= ATTACKS[name].short


def test_the_parts_of_an_attack_have_all_cases_and_different_seeds():
    parts = divide("cli", 250, 3)
    assert [part.count for part in parts] == [100, 100, 50]
    assert len({part.seed for part in parts}) == 3
    assert not {part.seed for part in parts} & {part.seed for part in divide("cli", 250, 4)}


def test_every_command_is_among_the_random_calls():
    """But the demo, which takes a minute, and all experiments of the paper but one, which share their options."""
    called = {name for name in read_options() if any(call.startswith(f"{name} ") for call in GOOD_CALLS)}
    left = {name for name in set(read_options()) - called if not name.startswith("bench ")}
    assert left == {"demo"}
