"""The compute format and that of fp32 matrix products, as contexts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from setpoint.units.dtype import DType


@contextmanager
def fp32_products(tf32: bool) -> Iterator[None]:
    """Compute matrix products and convolutions of fp32 on GPUs in TF32, or exactly.

    Libraries, containers and TORCH_ALLOW_TF32_CUBLAS_OVERRIDE switch it on as well, so that it is
    set in both cases. The older of PyTorch's two ways of setting it: all versions and their
    compilers read it without a warning.

    Returns:
        a context, after which all is as it was before.
    """
    matmul, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolutions


def compute_in(compute: str, stored: str, device: torch.device) -> AbstractContextManager[object]:
    """Compute matrix products in a format; weights and gradients keep their own.

    Autocast converts what it finds in another format at each product. Where weights are stored in
    the compute format there is nothing to convert, so that it is left away; fp32 is what autocast
    cannot convert to.

    A pass reads each weight once, so that autocast's cache of cast weights saves no cast; it would
    keep a copy of all weights until the forward pass ends, also of those that FSDP2 has freed.
    """
    if compute in ("fp32", stored):
        return nullcontext()
    return torch.autocast(device.type, DType(compute).torch(), cache_enabled=False)
