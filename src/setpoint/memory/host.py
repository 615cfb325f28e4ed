"""Copies between a device and host memory."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Offload(Protocol):
    """Moves the bytes of tensors to the host, and back."""

    def to_host(self, data: Tensor) -> Tensor:
        """Copy to the host.

        Arguments:
            data: on the device; it may be let go at once.

        Returns:
            the copy, whole when `prefetch` reads it.
        """
        ...

    def prefetch(self, data: Tensor) -> tuple[Tensor, Any]:
        """Begin to copy to the device.

        Arguments:
            data: what `to_host` gave.

        Returns:
            the copy, and what `wait` takes to know when it is whole.
        """
        ...

    def wait(self, data: Tensor, ready: Any) -> None:
        """See to it that what is computed from now on finds a copy whole.

        Arguments:
            data, ready: what `prefetch` gave.
        """
        ...


class CudaOffload:
    """On a stream of its own, beside what is computed, to and from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def to_host(self, data: Tensor) -> Tensor:
        """See `Offload.to_host`."""
        host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            host.copy_(data, non_blocking=True)
        # Its memory is not reused before the copy is made.
        data.record_stream(self.stream)
        return host

    def prefetch(self, data: Tensor) -> tuple[Tensor, Any]:
        """See `Offload.prefetch`.

        Arguments:
            data: what `to_host` gave.

        Returns:
            the copy, and what `wait` takes.
        """
        with torch.cuda.stream(self.stream):
            return data.to(self.device, non_blocking=True), self.stream.record_event()

    def wait(self, data: Tensor, ready: Any) -> None:
        """See `Offload.wait`.

        Arguments:
            data, ready: what `prefetch` gave.
        """
        here = torch.cuda.current_stream(self.device)
        here.wait_event(ready)
        data.record_stream(here)


class PlainOffload:
    """One copy after the other.

    Arguments:
        device: whose tensors are moved; where that is the host itself, they are copied within it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_host(self, data: Tensor) -> Tensor:
        """See `Offload.to_host`."""
        return data.to("cpu", copy=True)

    def prefetch(self, data: Tensor) -> tuple[Tensor, Any]:
        """See `Offload.prefetch`.

        Arguments:
            data: what `to_host` gave.

        Returns:
            the copy, and what `wait` takes.
        """
        return data.to(self.device, copy=True), None

    def wait(self, data: Tensor, ready: Any) -> None:
        """See `Offload.wait`: nothing is under way.

        Arguments:
            data, ready: what `prefetch` gave.
        """
        del data, ready


def offload_for(device: torch.device) -> Offload:
    """Choose how tensors travel."""
    return CudaOffload(device) if device.type == "cuda" else PlainOffload(device)
