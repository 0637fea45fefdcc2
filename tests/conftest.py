"""What holds for all tests."""

import os

import torch
from hypothesis import settings

# without a GPU the kernels run in an interpreter; Triton looks here when it is imported
if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

# how long an example takes says more about the machine than about the code
# and which examples are tried must not differ from run to run: what fails here fails for everybody
settings.register_profile("apood", deadline=None, derandomize=True)
settings.load_profile("apood")
