"""The attacks in a short form. `make break` runs the long one."""

import pytest
from run import ATTACKS


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_breaks(name, tmp_path):
    tally = ATTACKS[name].function(ATTACKS[name].short, 0, tmp_path)
    assert not tally.failures, f"{tally}\n" + "\n".join(tally.failures[:5])
    assert sum(tally.counts.values()) >= ATTACKS[name].short
