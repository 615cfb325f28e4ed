"""Calls of operators, and the bytes of their results that are still alive."""

from collections import Counter
from typing import Any

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


class Meter(TorchDispatchMode):
    """Counts operators, and follows the memory that they took while this is active."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.storages: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls[func._schema.name.removeprefix("aten::")] += 1
        given = {self.key(leaf) for leaf in pytree.tree_leaves((args, kwargs))}
        for leaf in pytree.tree_leaves(out):
            key = self.key(leaf)
            if key and key not in given:
                storage = leaf.untyped_storage()
                self.storages[key] = StorageWeakRef(storage), storage.nbytes()
        return out

    def key(self, leaf: Any) -> int:
        return leaf.untyped_storage()._cdata if isinstance(leaf, Tensor) else 0

    def alive(self) -> int:
        """Bytes that were made here and are still in use."""
        return sum(size for reference, size in self.storages.values() if not reference.expired())
