"""SGLang's compiled kernels: published for CUDA only. On CPU the scheduler calls one of them."""

from __future__ import annotations

import torch
from sglang_cpu.pretend import pretend

__getattr__ = pretend(__name__)


def assign_req_to_token_pool_cpu(
    requests: torch.Tensor,
    req_to_token: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    locations: torch.Tensor,
    _stride: int,
) -> None:
    """Write the token locations of a batch, one request after another, into the requests' rows."""
    done = 0
    for row, start, end in zip(requests.tolist(), starts.tolist(), ends.tolist(), strict=True):
        count = end - start
        req_to_token[row, start:end] = locations[done : done + count].to(req_to_token.dtype)
        done += count
