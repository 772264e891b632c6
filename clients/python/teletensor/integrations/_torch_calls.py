"""The calls of c10d's ProcessGroup, as ops of a group of the daemon."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np

from ._torch_data import Elements, check, joined, split, write
from ._torch_member import Member
from ._torch_work import Work

try:
    import torch
    from torch.distributed import ReduceOp
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'"
    ) from error

__all__ = ["Calls"]

_FRAMEWORKS = ("torch", __name__.partition(".")[0])
_COMBINATIONS = (
    (ReduceOp.PRODUCT, "product"), (ReduceOp.MIN, "min"), (ReduceOp.MAX, "max"),
    (ReduceOp.BAND, "and"), (ReduceOp.BOR, "or"), (ReduceOp.BXOR, "xor"),
)  # fmt: skip


def _site() -> str:
    """The program's line that calls torch.distributed, as errors on other ranks show it."""
    frame: Any = sys._getframe(1)
    while frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in _FRAMEWORKS:
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}" if frame is not None else ""


def _own_timeout(options: Any) -> float | None:
    """The seconds of a call's own timeout; None where it has none."""
    timeout = options if isinstance(options, timedelta) else getattr(options, "timeout", None)
    seconds = timeout.total_seconds() if timeout is not None else 0.0
    return seconds if seconds > 0 else None


def _one(tensors: Any, name: str) -> Any:
    if not isinstance(tensors, (list, tuple)) or len(tensors) != 1:
        raise ValueError(f"{name}: a list with one element for this process is expected")
    return tensors[0]


def _reduction(opts: Any) -> bool | str:
    """all_combine's word; True for an average, False for a sum."""
    op = opts.reduceOp if opts is not None else ReduceOp.SUM
    if op == ReduceOp.SUM or op == ReduceOp.AVG:
        return bool(op == ReduceOp.AVG)
    for known, word in _COMBINATIONS:
        if op == known:
            return word
    raise NotImplementedError(f"the backend teletensor has no reduction {op}")


def _reduced(member: Member, data: Elements, reduction: bool | str, site: str) -> np.ndarray[Any, Any]:
    return member.run("all_combine" if isinstance(reduction, str) else "all_reduce", data, reduction, site)


def _spread(array: np.ndarray[Any, Any], tensors: Sequence[Any]) -> None:
    for tensor, part in zip(tensors, split(array, tensors), strict=True):
        write(tensor, part)


class Calls:
    """Each call returns a Work, whose `wait()` raises the call's error. Calls run in their order, on
    another thread, so the program leaves the tensors alone until it has waited."""

    def name(self) -> str:
        """ "teletensor"."""
        return "teletensor"

    def _begin(self, member: Member, timeout: float) -> None:
        self._member: Member | None = member
        self._size, self._rank, self._timeout = member.size, member.rank, timeout
        self._posting = threading.Lock()
        self._posted: list[tuple[int, int, Work]] = []  # receives that have not begun: source, tag

    # ---------------------------------------------------------------- reductions

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Work:
        """The tensors of all ranks as one, in those of each."""
        if len(tensors) == 1 and tensors[0].layout == torch.sparse_coo:
            return self._sparse(tensors[0], opts)
        check(tensors, "all_reduce")
        reduction, site = _reduction(opts), _site()

        def call(member: Member) -> None:
            _spread(_reduced(member, joined(tensors, moved=False), reduction, site), tensors)

        return self._start("all_reduce", tensors, tensors, opts, call)

    def allreduce_coalesced(self, tensors: list[Any], opts: Any = None) -> Work:
        """As allreduce; the tensors have one dtype."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Any], opts: Any) -> Work:
        """As allreduce, on the root alone."""
        tensor = _one(tensors, "reduce")
        check(tensors, "reduce")
        reduction, root, site = _reduction(opts), self._root(opts), _site()

        def call(member: Member) -> None:
            data = joined(tensors, moved=False)
            if reduction is False:
                result = member.reduce_to(data, root, site)
            else:
                result = _reduced(member, data, reduction, site)
            if result is not None and self._rank == root:
                write(tensor, result)

        return self._start("reduce", tensors, tensors, opts, call)

    def reduce_scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any = None) -> Work:
        """The ranks' tensors at this rank's place, as one."""
        output, parts = _one(outputs, "reduce_scatter"), self._listed(_one(inputs, "reduce_scatter"))
        check([output, *parts], "reduce_scatter")
        if any(part.numel() != output.numel() for part in parts):
            raise ValueError(
                f"reduce_scatter: the inputs have {[part.numel() for part in parts]} elements, the output "
                f"has {output.numel()}"
            )
        return self._scattered("reduce_scatter", [output], [parts], opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """As reduce_scatter, of the parts of one tensor."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Any], inputs: list[Any], opts: Any = None
    ) -> Work:
        """As reduce_scatter_single, of several tensors."""
        name = "reduce_scatter_tensor"
        check([*outputs, *inputs], name)
        parts = [
            self._rows(f"{name}: input", input, output)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._scattered(name, outputs, parts, opts)

    def _scattered(self, name: str, outputs: list[Any], inputs: list[Any], opts: Any) -> Work:
        """inputs[i][r] has a rank's part of outputs[i] on rank r."""
        reduction, site = _reduction(opts), _site()

        def call(member: Member) -> None:
            data = joined([part for of_rank in zip(*inputs, strict=True) for part in of_rank], moved=False)
            if isinstance(reduction, str):
                result = np.split(member.run("all_combine", data, reduction, site), self._size)[self._rank]
            else:
                rows = (self._size, data.array.size // self._size)
                result = member.run("reduce_scatter", data, reduction, site, shape=rows)
            _spread(result, outputs)

        return self._start(name, [part for of_all in inputs for part in of_all], outputs, opts, call)

    def _sparse(self, tensor: Any, opts: Any) -> Work:
        """The sum of all ranks' sparse tensors."""
        if _reduction(opts) is not False:
            raise ValueError("all_reduce of sparse tensors has sums only")
        site = _site()

        def call(member: Member) -> None:
            def gathered(rows: Any) -> Any:
                found = rows.new_empty((self._size, *rows.shape))
                write(found, member.run("all_gather", joined([rows], moved=True), self._size, site))
                return found

            own = tensor.detach().coalesce()
            counts = gathered(torch.tensor(own._nnz())).tolist()

            def of_all(rows: Any) -> Any:
                padded = rows.new_zeros((max(counts), *rows.shape[1:]))
                padded[: len(rows)] = rows
                return torch.cat([part[:n] for part, n in zip(gathered(padded), counts, strict=True)])

            indices, values = of_all(own.indices().t()), of_all(own.values())
            with torch.no_grad():
                tensor.copy_(torch.sparse_coo_tensor(indices.t(), values, tensor.shape).coalesce())

        return self._start("all_reduce", [tensor], [tensor], opts, call)

    # ---------------------------------------------------------------- copies

    def broadcast(self, tensors: list[Any], opts: Any) -> Work:
        """The root's tensors, in those of each."""
        check(tensors, "broadcast")
        root, site = self._root(opts), _site()

        def call(member: Member) -> None:
            result = member.broadcast(joined(tensors, moved=True), root, site)
            if result is not None:
                _spread(result, tensors)

        return self._start("broadcast", tensors, tensors, opts, call)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Work:
        """The tensor of each rank, in a list of each."""
        targets, source = self._listed(_one(outputs, "all_gather")), _one(inputs, "all_gather")
        return self._gathered("all_gather", [[target] for target in targets], [source], opts)

    def allgather_coalesced(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Work:
        """As allgather, of several tensors: outputs[r] has those of rank r."""
        return self._gathered("all_gather_coalesced", self._listed(outputs), inputs, opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """The tensors of all ranks, one after the other."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Work:
        """As all_gather_single, of several tensors."""
        name = "all_gather_into_tensor"
        check(outputs, name)
        rows = [
            self._rows(f"{name}: output", output, input)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._gathered(name, list(zip(*rows, strict=True)), inputs, opts)

    def _gathered(self, name: str, targets: Sequence[Any], inputs: list[Any], opts: Any) -> Work:
        """targets[r] has the tensors of rank r."""
        check([*inputs, *(target for of_rank in targets for target in of_rank)], name)
        wanted = [(tensor.dtype, tensor.numel()) for tensor in inputs]
        for of_rank in targets:
            if [(tensor.dtype, tensor.numel()) for tensor in of_rank] != wanted:
                raise ValueError(f"{name}: the outputs of each rank are expected to be as the inputs")
        site = _site()

        def call(member: Member) -> None:
            result = member.run("all_gather", joined(inputs, moved=True), self._size, site)
            for row, of_rank in zip(np.split(result, self._size), targets, strict=True):
                _spread(row, of_rank)

        return self._start(name, inputs, [tensor for of_rank in targets for tensor in of_rank], opts, call)

    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Work:
        """The tensor of each rank, in a list of the root."""
        source, root = _one(inputs, "gather"), self._root(opts)
        here = self._rank == root
        if not here and outputs:
            raise ValueError("gather: only the root has output tensors")
        targets = self._listed(_one(outputs, "gather")) if here else []
        if any(target.dtype != source.dtype or target.numel() != source.numel() for target in targets):
            raise ValueError("gather: the outputs are expected to be as the input")
        sends = [source.numel() if rank == root else 0 for rank in range(self._size)]
        receives = [target.numel() for target in targets] or [0] * self._size
        return self._exchanged("gather", targets, [source], sends, receives, opts)

    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Work:
        """A tensor of the root's list, on each rank."""
        target, root = _one(outputs, "scatter"), self._root(opts)
        here = self._rank == root
        if not here and inputs:
            raise ValueError("scatter: only the root has input tensors")
        sources = self._listed(_one(inputs, "scatter")) if here else [target.detach().flatten()[:0]]
        if here and any(part.dtype != target.dtype or part.numel() != target.numel() for part in sources):
            raise ValueError("scatter: the inputs are expected to be as the output")
        sends = [source.numel() for source in sources] if here else [0] * self._size
        receives = [target.numel() if rank == root else 0 for rank in range(self._size)]
        return self._exchanged("scatter", [target], sources, sends, receives, opts)

    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Work:
        """Tensor i of each rank's inputs, in the outputs of rank i."""
        targets, sources = self._listed(outputs), self._listed(inputs)
        sends, receives = ([tensor.numel() for tensor in tensors] for tensors in (sources, targets))
        return self._exchanged("all_to_all", targets, sources, sends, receives, opts)

    def all_to_all_single(
        self, output: Any, input: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Work:
        """As alltoall, of the parts of one tensor along dimension 0."""
        sends = self._parts("input", input, input_sizes)
        receives = self._parts("output", output, output_sizes)
        return self._exchanged("all_to_all_single", [output], [input], sends, receives, opts)

    def _parts(self, name: str, tensor: Any, sizes: Any) -> list[int]:
        """The elements of each part."""
        rows = tensor.shape[0] if tensor.dim() else 1
        if not sizes and rows % self._size:
            raise ValueError(
                f"all_to_all_single: {name} of {rows} rows does not split equally for {self._size} ranks"
            )
        parts = [int(size) for size in sizes] if sizes else [rows // self._size] * self._size
        if len(parts) != self._size or sum(parts) != rows or min(parts) < 0:
            raise ValueError(
                f"all_to_all_single: {name}_split_sizes {parts} do not split {rows} rows for "
                f"{self._size} ranks"
            )
        return [size * (tensor.numel() // rows if rows else 0) for size in parts]

    def _exchanged(
        self,
        name: str,
        targets: list[Any],
        sources: list[Any],
        sends: list[int],
        receives: list[int],
        opts: Any,
    ) -> Work:
        check([*targets, *sources], name)
        if len({tensor.dtype for tensor in [*targets, *sources]}) != 1:
            raise ValueError(f"{name}: tensors of one dtype are expected")
        site = _site()

        def call(member: Member) -> None:
            result = member.run("all_to_all", joined(sources, moved=True), sends, receives, site)
            if targets:
                _spread(result, targets)

        return self._start(name, sources, targets, opts, call)

    def barrier(self, opts: Any = None) -> Work:
        """Waits for the other ranks."""
        site = _site()
        return self._start("barrier", [], [], opts, lambda member: member.meet(site))

    # ---------------------------------------------------------------- from one rank to another

    def send(self, tensors: list[Any], to: int, tag: int) -> Work:
        """Ends when the daemon has the tensor, which keeps it for the receiver."""
        check([_one(tensors, "send")], "send")
        member = self._reached("send", to)
        work = Work(f"{self.name()}:send", tensors)
        member.send(work, joined(tensors, moved=True), to, tag, _site())
        return work

    def recv(self, tensors: list[Any], source: int, tag: int) -> Work:
        """Begins with `wait()`, `is_completed()` or `get_future()` of its Work."""
        check([_one(tensors, "recv")], "recv")
        return self._received(tensors, source, tag, self._reached("recv", source))

    def recv_anysource(self, tensors: list[Any], tag: int) -> Work:
        """As recv, of any rank, which `source_rank` of the Work tells."""
        check([_one(tensors, "recv")], "recv")
        return self._received(tensors, -1, tag, self._reached("recv", -1))

    def _received(self, tensors: list[Any], source: int, tag: int, member: Member) -> Work:
        site, like = _site(), joined([tensors[0].new_empty(0)], moved=True)

        def begin() -> None:
            with self._posting:
                before = self._posted[: self._posted.index(posted)]
                self._posted.remove(posted)
            for earlier_source, earlier_tag, earlier in before:  # what may take the same tensor comes first
                if earlier_tag == tag and (earlier_source == source or -1 in (earlier_source, source)):
                    earlier.begin()
            member.receive(work, like.dtype, tensors[0].numel(), source, tag, site, take)

        def take(array: np.ndarray[Any, Any]) -> None:
            write(tensors[0], array)

        name = "recv" if source >= 0 else "recvAnySource"
        work = Work(f"{self.name()}:{name}", tensors, tensors, begin=begin)
        posted = (source, tag, work)
        with self._posting:
            self._posted.append(posted)
        return work

    # Names of earlier versions of PyTorch
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---------------------------------------------------------------- helpers

    def _start(
        self, name: str, given: list[Any], result: list[Any], opts: Any, call: Callable[[Member], None]
    ) -> Work:
        limit, member = _own_timeout(opts), self._joined(name)
        limit = limit if limit is not None and limit < self._timeout else None
        work = Work(f"{self.name()}:{name}", given, result, limit)
        member.put(work, lambda: call(member))
        return work

    def _joined(self, name: str) -> Member:
        if self._member is None:
            raise RuntimeError(f"{name}: the process group has been destroyed")
        if self._member.pid != os.getpid():
            raise RuntimeError(f"{name}: the process group was made before this process was forked")
        return self._member

    def _root(self, opts: Any) -> int:
        root = int(opts.rootRank)
        if not 0 <= root < self._size:
            raise ValueError(f"rank {root} is not in a group of {self._size}")
        return root

    def _reached(self, name: str, peer: int) -> Member:
        """The member, which can transfer to and from that rank (-1: any)."""
        if self._size == 1 or peer == self._rank or not -1 <= peer < self._size:
            raise ValueError(
                f"{name}: rank {peer} is no other rank of a group of {self._size}, in which this process "
                f"is rank {self._rank}"
            )
        return self._joined(name)

    def _listed(self, tensors: Any) -> list[Any]:
        if len(tensors) != self._size:
            raise ValueError(
                f"a list of {self._size} elements, one for each rank, is expected, not of {len(tensors)}"
            )
        return list(tensors)

    def _rows(self, name: str, whole: Any, part: Any) -> Sequence[Any]:
        """The parts for each rank, which share their memory with the whole one."""
        if whole.dtype != part.dtype or whole.numel() != part.numel() * self._size:
            raise ValueError(
                f"{name} of {whole.numel()} {whole.dtype} is not {self._size} times as large as the other "
                f"tensor, of {part.numel()} {part.dtype}"
            )
        if whole.is_contiguous():
            return list(whole.detach().view(self._size, part.numel()).unbind(0))
        if whole.dim() and whole.shape[0] % self._size == 0:
            return list(whole.detach().chunk(self._size))
        raise ValueError(f"{name} of {tuple(whole.shape)} has no equal parts along dimension 0")
