"""Rows on splits: what they learn from."""

from pathlib import Path

import pytest
import torch

from apood.evaluation.entry import Entry
from apood.evaluation.split import Split
from apood.evaluation.study import run_entry
from apood.experiments.paper.trials import _for_row
from apood.tokens.batch import Ragged, TokenBatch


def outputs(lengths: list[int]) -> TokenBatch:
    generator = torch.Generator().manual_seed(0)
    batch = TokenBatch.from_lengths(torch.randn(sum(lengths), 4, generator=generator), lengths)
    logprobs = -torch.rand(sum(lengths), generator=generator)
    return batch.with_channels(token_logprobs=Ragged.from_lengths(logprobs, torch.tensor(lengths)))


@pytest.mark.filterwarnings("ignore:5 of 20 sequences have no token_logprobs")
def test_an_empty_output_among_those_that_are_scored_costs_no_row(tmp_path: Path) -> None:
    """What looks at no tokens is fitted on the test set, where an empty output is scored, but nothing to fit on."""
    bare = TokenBatch.from_lengths(torch.zeros(6, 4), [3, 3])  # training sequences have no channels
    data = Split(train=bare, test=outputs([3, 0, 2, 4] * 5), ood={"x": outputs([3] * 6)})
    row = Entry("perplexity")
    found = run_entry(row, _for_row(row, data), tmp_path)
    assert (found.rows[0]["dataset"], found.rows[0]["n_id"], found.rows[0]["n_ood"]) == ("x", 20, 6)
