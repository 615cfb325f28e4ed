"""Tensors that autograd saves for the backward pass, kept on the device or on the host."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from setpoint.memory.host import Offload

AHEAD = 4
"""Storages that are fetched before they are asked for, in the order of the backward pass."""


class Storage:
    """The memory of saved tensors: of one, or of several that are views of it."""

    __slots__ = ("__weakref__", "before", "host", "offload", "ready", "size", "tensor", "version")

    def __init__(self, tensor: Tensor, offload: Offload) -> None:
        # Detached: the graph holds this, and this must not hold the graph.
        self.tensor: Tensor | None = tensor.detach()
        self.version = tensor._version
        self.size = tensor.untyped_storage().nbytes()
        self.host: Tensor | None = None
        self.ready: Any = None
        self.offload = offload
        self.before: weakref.ref[Storage] | None = None

    def move(self) -> None:
        """Copy it to the host, and let it go here."""
        if self.tensor is not None:
            require_unchanged(self.tensor, self.version)
            self.host = self.offload.to_host(bytes_of(self.tensor))
            self.tensor = None

    def fetch(self) -> None:
        """Begin to copy it back."""
        if self.tensor is None:
            assert self.host is not None
            self.tensor, self.ready = self.offload.prefetch(self.host)

    def get(self) -> Tensor:
        """Make it whole on the device, and fetch what will be wanted next."""
        self.fetch()
        assert self.tensor is not None
        if self.host is not None:
            self.offload.wait(self.tensor, self.ready)
            following = self.before
            for _ in range(AHEAD):
                storage = None if following is None else following()
                if storage is None:
                    break
                storage.fetch()
                following = storage.before
        else:
            require_unchanged(self.tensor, self.version)
        return self.tensor


class View:
    """A saved tensor in a storage; this is what autograd holds."""

    __slots__ = ("dtype", "offset", "shape", "storage", "stride")

    def __init__(self, tensor: Tensor, storage: Storage) -> None:
        self.storage = storage
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self.stride, self.offset = tensor.stride(), tensor.storage_offset()

    def get(self) -> Tensor:
        """Bring it to the device, if it is not there."""
        memory = self.storage.get()
        empty = torch.empty(0, dtype=self.dtype, device=memory.device)
        return empty.set_(memory.untyped_storage(), self.offset, self.shape, self.stride)


class Stays:
    """A saved tensor that is not moved."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor.detach(), tensor._version

    def get(self) -> Tensor:
        """Look that it was not changed."""
        require_unchanged(self.tensor, self.version)
        return self.tensor


class SavedTensors:
    """Hooks for `torch.autograd.graph.saved_tensors_hooks` that keep the newest on the device.

    The backward pass wants the newest first, so the oldest ones travel. Memory that several saved
    tensors share travels once.

    Arguments:
        limit: bytes that may stay on it.
        smallest: bytes; smaller ones always stay, and do not count.
    """

    def __init__(self, offload: Offload, device: torch.device, limit: int, smallest: int) -> None:
        self.offload, self.device, self.limit, self.smallest = offload, device, limit, smallest
        self.here: deque[tuple[int, weakref.ref[Storage]]] = deque()
        self.bytes_here = 0
        self.last: weakref.ref[Storage] | None = None
        # By where the memory lies and its version. The weak reference keeps the place from being
        # given to another storage.
        self.known: dict[tuple[int, int], tuple[StorageWeakRef, weakref.ref[Storage]]] = {}
        self.fixed: set[int] = set()

    def start(self, fixed: Iterable[Tensor]) -> None:
        """Begin a forward pass."""
        plain = (Tensor, nn.Parameter)  # a distributed one has no memory of its own
        self.fixed = {t.untyped_storage()._cdata for t in fixed if type(t) in plain}
        # Most are gone with the graph of the pass before.
        self.here = deque(each for each in self.here if each[1]() is not None)
        self.bytes_here = sum(size for size, _ in self.here)

    def pack(self, tensor: Tensor) -> Any:
        """Take a tensor that is saved.

        Returns:
            what `unpack` takes.
        """
        if not self._travels(tensor):
            return Stays(tensor)
        memory = tensor.untyped_storage()
        key = (memory._cdata, tensor._version)
        if key in self.known:
            reference, known = self.known[key]
            storage = known()
            if storage is not None and not reference.expired():
                return View(tensor, storage)
        storage = Storage(tensor, self.offload)
        storage.before, self.last = self.last, weakref.ref(storage)
        gone = weakref.ref(storage, lambda _: self.known.pop(key, None))
        self.known[key] = StorageWeakRef(memory), gone
        self.here.append((storage.size, gone))
        self.bytes_here += storage.size
        while self.bytes_here > self.limit:
            size, oldest = self.here.popleft()
            self.bytes_here -= size
            if (found := oldest()) is not None:
                found.move()
        return View(tensor, storage)

    def unpack(self, packed: Any) -> Tensor:
        """Give a tensor back.

        Arguments:
            packed: what `pack` gave.
        """
        return packed.get()

    def _travels(self, tensor: Tensor) -> bool:
        if type(tensor) is not Tensor or tensor.device.type != self.device.type:
            return False  # parameters, and tensors of other classes
        if tensor.layout != torch.strided or tensor.is_conj() or tensor.is_neg():
            return False
        if isinstance(tensor._base, nn.Parameter):
            return False
        memory = tensor.untyped_storage()
        return memory.nbytes() >= max(self.smallest, 1) and memory._cdata not in self.fixed


def bytes_of(tensor: Tensor) -> Tensor:
    """See all the memory that a tensor lies in."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def require_unchanged(tensor: Tensor, version: int) -> None:
    """Refuse a tensor that was changed after it was saved, as autograd does.

    Raises:
        RuntimeError: if they differ.
    """
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} that the backward pass needs was changed in "
            f"place: it is at version {tensor._version}; expected version {version}"
        )
