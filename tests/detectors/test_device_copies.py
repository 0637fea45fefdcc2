"""Copies of learnt tensors on another device: the meta device stands for it, since no number is looked at."""

import copy
import gc

import torch

from apood.detectors.shared import device_copies
from apood.detectors.shared.device_copies import copy_on

CPU, THERE = torch.device("cpu"), torch.device("meta")


def test_a_tensor_is_copied_once_to_a_device_and_never_to_its_own():
    learnt = torch.ones(3, dtype=torch.float64)
    assert copy_on(CPU, learnt) is learnt
    moved = copy_on(THERE, learnt)
    assert moved.device == THERE and moved.dtype == learnt.dtype and moved.shape == learnt.shape
    assert copy_on(THERE, learnt) is moved
    assert copy_on(CPU, learnt) is learnt


def test_an_equal_tensor_has_a_copy_of_its_own():
    learnt = torch.ones(3)
    assert copy_on(THERE, copy.deepcopy(learnt)) is not copy_on(THERE, learnt)


def test_a_copy_goes_with_what_it_was_made_of():
    gc.collect()
    before = len(device_copies._COPIES)
    learnt = torch.ones(3)
    copy_on(THERE, learnt)
    assert len(device_copies._COPIES) == before + 1
    del learnt
    gc.collect()
    assert len(device_copies._COPIES) == before
