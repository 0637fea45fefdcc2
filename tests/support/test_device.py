"""Devices by name."""

import pytest
import torch

from apood.support.device import check_device, resolve_device
from apood.support.errors import InputError

CPU = torch.device("cpu")


@pytest.mark.parametrize("name", ["auto", None, "cpu", CPU])
def test_without_a_gpu_auto_is_the_cpu(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device(name) == CPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["auto", None, "cuda", torch.device("cuda")])
def test_a_gpu_has_its_index(name):
    assert resolve_device(name) == torch.device("cuda", torch.cuda.current_device())


@pytest.mark.parametrize("name", ["magic", "cuda:one", 1.5])
def test_what_names_no_device_is_refused(name):
    for refuse in (check_device, resolve_device):
        with pytest.raises(InputError, match=f"device must be .*{name}"):
            refuse(name)


@pytest.mark.parametrize("name", ["cuda:99", "meta", "vulkan", "hpu"])
def test_a_device_that_cannot_compute_here_is_refused_only_where_it_is_used(name):
    check_device(name)
    with pytest.raises(InputError, match=rf"'{name}' cannot be used .* 'auto'"):
        resolve_device(name)
