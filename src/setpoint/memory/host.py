"""Ways between a device and the host's memory."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class Way(Protocol):
    """Moves the bytes of tensors away from a device, and back."""

    def away(self, data: Tensor) -> Tensor:
        """Copy to the host.

        Arguments:
            data: on the device; it may be let go at once.

        Returns:
            the copy, whole when `back` reads it.
        """
        ...

    def back(self, data: Tensor) -> tuple[Tensor, Any]:
        """Begin to copy to the device.

        Arguments:
            data: what `away` gave.

        Returns:
            the copy, and what `wait` takes to know when it is whole.
        """
        ...

    def wait(self, data: Tensor, ready: Any) -> None:
        """See to it that what is computed from now on finds a copy whole.

        Arguments:
            data, ready: what `back` gave.
        """
        ...


class CudaWay:
    """On a stream of its own, beside what is computed, to and from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)

    def away(self, data: Tensor) -> Tensor:
        """See `Way.away`."""
        host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            host.copy_(data, non_blocking=True)
        # Its memory is given to nobody else before the copy is made.
        data.record_stream(self.stream)
        return host

    def back(self, data: Tensor) -> tuple[Tensor, Any]:
        """See `Way.back`.

        Arguments:
            data: what `away` gave.

        Returns:
            the copy, and what `wait` takes.
        """
        with torch.cuda.stream(self.stream):
            return data.to(self.device, non_blocking=True), self.stream.record_event()

    def wait(self, data: Tensor, ready: Any) -> None:
        """See `Way.wait`.

        Arguments:
            data, ready: what `back` gave.
        """
        here = torch.cuda.current_stream(self.device)
        here.wait_event(ready)
        data.record_stream(here)


class PlainWay:
    """One copy after the other.

    Arguments:
        device: whose tensors are moved; where that is the host itself, they are copied within it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def away(self, data: Tensor) -> Tensor:
        """See `Way.away`."""
        return data.to("cpu", copy=True)

    def back(self, data: Tensor) -> tuple[Tensor, Any]:
        """See `Way.back`.

        Arguments:
            data: what `away` gave.

        Returns:
            the copy, and what `wait` takes.
        """
        return data.to(self.device, copy=True), None

    def wait(self, data: Tensor, ready: Any) -> None:
        """See `Way.wait`: nothing is under way.

        Arguments:
            data, ready: what `back` gave.
        """
        del data, ready


def way_between(device: torch.device) -> Way:
    """Choose how tensors travel."""
    return CudaWay(device) if device.type == "cuda" else PlainWay(device)
