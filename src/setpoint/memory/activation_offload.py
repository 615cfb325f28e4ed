"""Activation offload: tensors saved by autograd for the backward pass, in host memory."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from setpoint.memory.config import ActivationOffload


def offload_activations(config: ActivationOffload, model: nn.Module, device: torch.device) -> None:
    """Offload tensors that a model saves for backward, above a limit, to host memory.

    Parameters and buffers stay, as do tensors of a head, such as logits, with which the backward
    pass begins. Losses and gradients are bit-identical.

    Arguments:
        model: the model on its device, not compiled yet; changed in place except for parameter
            names.
    """
    offload = CudaOffload(device) if device.type == "cuda" else Offload(device)
    saved = SavedTensors(offload, device, int(config.limit), int(config.smallest))
    model.forward = partial(_run, saved, model, model.forward)


def _run(saved: SavedTensors, model: nn.Module, forward: Any, *args: Any, **kwargs: Any) -> Any:
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    if kwargs.get("head") is not None:
        kwargs["head"] = partial(_run_head, kwargs["head"])
    saved.start(chain(model.parameters(), model.buffers()))
    with saved_tensors_hooks(saved.pack, saved.unpack):
        return forward(*args, **kwargs)


def _run_head(head: Any, *args: Any) -> Any:
    with saved_tensors_hooks(Stays, Stays.get):
        return head(*args)


class Offload:
    """Synchronous copies of tensors to host memory and back.

    Arguments:
        device: device of the tensors; CPU tensors are copied within host memory.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def to_host(self, data: Tensor) -> Tensor:
        """Copy a tensor to the host; `data` may be freed immediately.

        Returns:
            the copy, which is complete by the time `prefetch` reads it.
        """
        return data.to("cpu", copy=True)

    def prefetch(self, data: Tensor) -> tuple[Tensor, Any]:
        """Start copying a result of `to_host` to the device.

        Returns:
            the copy, and the event to pass to `wait`.
        """
        return data.to(self.device, copy=True), None

    def wait(self, data: Tensor, ready: Any) -> None:
        """Make later computation wait for the copy started by `prefetch`."""


class CudaOffload(Offload):
    """Asynchronous copies to and from pinned memory on a separate stream."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
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
        """See `Offload.prefetch`."""
        with torch.cuda.stream(self.stream):
            return data.to(self.device, non_blocking=True), self.stream.record_event()

    def wait(self, data: Tensor, ready: Any) -> None:
        """See `Offload.wait`."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(ready)
        data.record_stream(current)


AHEAD = 4
"""Number of storages prefetched in the order of the backward pass."""


class Storage:
    """Storage of one saved tensor, or of several views of it."""

    __slots__ = ("__weakref__", "before", "host", "offload", "ready", "size", "tensor", "version")

    def __init__(self, tensor: Tensor, offload: Offload) -> None:
        # Detached: the graph refers to this, which must not refer to the graph.
        self.tensor: Tensor | None = tensor.detach()
        self.version = tensor._version
        self.size = tensor.untyped_storage().nbytes()
        self.host: Tensor | None = None
        self.ready: Any = None
        self.offload = offload
        self.before: weakref.ref[Storage] | None = None

    def move(self) -> None:
        """Copy the storage to the host and free it on the device."""
        if self.tensor is not None:
            require_unchanged(self.tensor, self.version)
            self.host = self.offload.to_host(bytes_of(self.tensor))
            self.tensor = None

    def fetch(self) -> None:
        """Start copying the storage back."""
        if self.tensor is None:
            assert self.host is not None
            self.tensor, self.ready = self.offload.prefetch(self.host)

    def get(self) -> Tensor:
        """Return the storage on the device, and prefetch the next ones in backward order."""
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


class SavedView:
    """A saved tensor in a storage, as kept by autograd."""

    __slots__ = ("dtype", "offset", "shape", "storage", "stride")

    def __init__(self, tensor: Tensor, storage: Storage) -> None:
        self.storage = storage
        self.dtype, self.shape = tensor.dtype, tensor.shape
        self.stride, self.offset = tensor.stride(), tensor.storage_offset()

    def get(self) -> Tensor:
        """Return the tensor on the device."""
        memory = self.storage.get()
        empty = torch.empty(0, dtype=self.dtype, device=memory.device)
        return empty.set_(memory.untyped_storage(), self.offset, self.shape, self.stride)


class Stays:
    """A saved tensor that is not moved."""

    __slots__ = ("tensor", "version")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor, self.version = tensor.detach(), tensor._version

    def get(self) -> Tensor:
        """Return the tensor, checked for changes in place."""
        require_unchanged(self.tensor, self.version)
        return self.tensor


class SavedTensors:
    """Hooks for `torch.autograd.graph.saved_tensors_hooks` that keep the newest on the device.

    The backward pass reads the newest first, so the oldest ones are offloaded. Memory that several
    saved tensors share is transferred once.

    Arguments:
        limit: bytes that may stay on the device.
        smallest: minimum size in bytes; smaller tensors always stay, and do not count.
    """

    def __init__(self, offload: Offload, device: torch.device, limit: int, smallest: int) -> None:
        self.offload, self.device, self.limit, self.smallest = offload, device, limit, smallest
        self.on_device: deque[tuple[int, weakref.ref[Storage]]] = deque()
        self.bytes_on_device = 0
        self.last: weakref.ref[Storage] | None = None
        # By memory address and version. The weak reference keeps the address from being reused by
        # another storage.
        self.known: dict[tuple[int, int], tuple[StorageWeakRef, weakref.ref[Storage]]] = {}
        self.fixed: set[int] = set()

    def start(self, fixed: Iterable[Tensor]) -> None:
        """Begin a forward pass."""
        plain = (Tensor, nn.Parameter)  # a distributed one has no own memory
        self.fixed = {t.untyped_storage()._cdata for t in fixed if type(t) in plain}
        # Most were freed with the graph of the previous pass.
        self.on_device = deque(entry for entry in self.on_device if entry[1]() is not None)
        self.bytes_on_device = sum(size for size, _ in self.on_device)

    def pack(self, tensor: Tensor) -> Any:
        """Replace a tensor saved by autograd with a handle; see `unpack`."""
        if not self._travels(tensor):
            return Stays(tensor)
        memory = tensor.untyped_storage()
        key = (memory._cdata, tensor._version)
        if key in self.known:
            reference, known = self.known[key]
            storage = known()
            if storage is not None and not reference.expired():
                return SavedView(tensor, storage)
        storage = Storage(tensor, self.offload)
        storage.before, self.last = self.last, weakref.ref(storage)
        gone = weakref.ref(storage, lambda _: self.known.pop(key, None))
        self.known[key] = StorageWeakRef(memory), gone
        self.on_device.append((storage.size, gone))
        self.bytes_on_device += storage.size
        while self.bytes_on_device > self.limit:
            size, oldest = self.on_device.popleft()
            self.bytes_on_device -= size
            if (storage_to_move := oldest()) is not None:
                storage_to_move.move()
        return SavedView(tensor, storage)

    def unpack(self, packed: Any) -> Tensor:
        """Return the tensor for a handle from `pack`."""
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
    """View the whole storage of a tensor as bytes."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def require_unchanged(tensor: Tensor, version: int) -> None:
    """Raise RuntimeError, as autograd does, if a tensor was changed in place after saving."""
    if tensor._version != version:
        raise RuntimeError(
            f"a tensor of shape {tuple(tensor.shape)} that the backward pass needs was changed in "
            f"place: it is at version {tensor._version}; expected version {version}"
        )
