"""Implements the calls of c10d's ProcessGroup by ops of a group of the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ._torch_caller import caller_line, one, spread
from ._torch_data import check, joined, rows, write
from ._torch_member import Member
from ._torch_reductions import Reductions
from ._torch_work import Work

__all__ = ["CALLS", "Calls"]

# The names under which PyTorch calls those functions that have tensors.
CALLS = (
    "broadcast", "allreduce", "allreduce_coalesced", "reduce", "allgather", "_allgather_base",
    "all_gather_single", "allgather_coalesced", "allgather_into_tensor_coalesced",
    "all_gather_single_coalesced", "gather", "scatter", "reduce_scatter", "_reduce_scatter_base",
    "reduce_scatter_single", "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced",
    "alltoall", "alltoall_base", "all_to_all_single", "send", "recv", "recv_anysource",
)  # fmt: skip


class Calls(Reductions):
    """All calls: reductions, copies, and sends and receives."""

    # ---------------------------------------------------------------- copies

    def broadcast(self, tensors: list[Any], opts: Any) -> Work:
        """Copies the root's tensors into the tensors of each rank."""
        check(tensors, "broadcast")
        root, site = self._root(opts), caller_line()

        def call(member: Member) -> None:
            result = member.broadcast(joined(tensors, moved=True), root, site)
            if result is not None:
                spread(result, tensors)

        return self._start("broadcast", tensors, tensors, opts, call)

    def allgather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Work:
        """Writes the tensor of each rank into a list on each rank."""
        targets, source = self._listed(one(outputs, "all_gather")), one(inputs, "all_gather")
        return self._gathered("all_gather", [[target] for target in targets], [source], opts)

    def allgather_coalesced(self, outputs: list[list[Any]], inputs: list[Any], opts: Any = None) -> Work:
        """As allgather, for several tensors: outputs[r] receives those of rank r."""
        return self._gathered("all_gather_coalesced", self._listed(outputs), inputs, opts)

    def all_gather_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """Writes the concatenated tensors of all ranks into output."""
        return self.all_gather_single_coalesced([output], [input], opts)

    def all_gather_single_coalesced(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Work:
        """As all_gather_single, for several tensors."""
        name = "all_gather_into_tensor"
        check(outputs, name)
        parts = [
            self._rows(f"{name}: output", output, input)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._gathered(name, list(zip(*parts, strict=True)), inputs, opts)

    def _gathered(self, name: str, targets: Sequence[Any], inputs: list[Any], opts: Any) -> Work:
        """Writes the tensors of rank r into targets[r]."""
        check([*inputs, *(target for of_rank in targets for target in of_rank)], name)
        wanted = [(tensor.dtype, tensor.numel()) for tensor in inputs]
        for of_rank in targets:
            if [(tensor.dtype, tensor.numel()) for tensor in of_rank] != wanted:
                raise ValueError(f"{name}: outputs must have the inputs' dtype and number of elements")
        site = caller_line()

        def call(member: Member) -> None:
            result = member.run("all_gather", joined(inputs, moved=True), self._size, site)
            for row, of_rank in zip(rows(result, self._size), targets, strict=True):
                spread(row, of_rank)

        return self._start(name, inputs, [tensor for of_rank in targets for tensor in of_rank], opts, call)

    def gather(self, outputs: list[list[Any]], inputs: list[Any], opts: Any) -> Work:
        """Writes the tensor of each rank into a list on the root."""
        source, root = one(inputs, "gather"), self._root(opts)
        here = self._rank == root
        if not here and outputs:
            raise ValueError("gather: only the root has output tensors")
        targets = self._listed(one(outputs, "gather")) if here else []
        if any(target.dtype != source.dtype or target.numel() != source.numel() for target in targets):
            raise ValueError("gather: outputs must have the input's dtype and number of elements")
        sends = [source.numel() if rank == root else 0 for rank in range(self._size)]
        receives = [target.numel() for target in targets] or [0] * self._size
        return self._exchanged("gather", targets, [source], sends, receives, opts)

    def scatter(self, outputs: list[Any], inputs: list[list[Any]], opts: Any) -> Work:
        """Writes the tensors in the root's list into the tensors of the corresponding ranks."""
        target, root = one(outputs, "scatter"), self._root(opts)
        here = self._rank == root
        if not here and inputs:
            raise ValueError("scatter: only the root has input tensors")
        sources = self._listed(one(inputs, "scatter")) if here else [target.detach().flatten()[:0]]
        if here and any(part.dtype != target.dtype or part.numel() != target.numel() for part in sources):
            raise ValueError("scatter: inputs must have the output's dtype and number of elements")
        sends = [source.numel() for source in sources] if here else [0] * self._size
        receives = [target.numel() if rank == root else 0 for rank in range(self._size)]
        return self._exchanged("scatter", [target], sources, sends, receives, opts)

    def alltoall(self, outputs: list[Any], inputs: list[Any], opts: Any = None) -> Work:
        """Writes tensor i of each rank's inputs into the outputs of rank i."""
        targets, sources = self._listed(outputs), self._listed(inputs)
        sends, receives = ([tensor.numel() for tensor in tensors] for tensors in (sources, targets))
        return self._exchanged("all_to_all", targets, sources, sends, receives, opts)

    def all_to_all_single(
        self, output: Any, input: Any, output_sizes: Any, input_sizes: Any, opts: Any = None
    ) -> Work:
        """As alltoall, for the parts of one tensor along dimension 0."""
        sends = self._parts("input", input, input_sizes)
        receives = self._parts("output", output, output_sizes)
        return self._exchanged("all_to_all_single", [output], [input], sends, receives, opts)

    def _parts(self, name: str, tensor: Any, sizes: Any) -> list[int]:
        """The number of elements in each part."""
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
            raise ValueError(f"{name}: the tensors must have one dtype")
        site = caller_line()

        def call(member: Member) -> None:
            result = member.run("all_to_all", joined(sources, moved=True), sends, receives, site)
            if targets:
                spread(result, targets)

        return self._start(name, sources, targets, opts, call)

    def barrier(self, opts: Any = None) -> Work:
        """Waits for the other ranks."""
        site = caller_line()
        return self._start("barrier", [], [], opts, lambda member: member.meet(site))

    # ---------------------------------------------------------------- from one rank to another

    def send(self, tensors: list[Any], to: int, tag: int) -> Work:
        """Sends a tensor to a rank. The Work ends when the daemon has the tensor, which it keeps for the
        receiver."""
        check([one(tensors, "send")], "send")
        member = self._reached("send", to, tensors)
        work = Work(f"{self.name()}:send", tensors)
        member.send(work, joined(tensors, moved=True), to, tag, caller_line())
        return work

    def recv(self, tensors: list[Any], source: int, tag: int) -> Work:
        """Begins with `wait()`, `is_completed()` or `get_future()` of its Work."""
        check([one(tensors, "recv")], "recv")
        return self._received(tensors, source, tag, self._reached("recv", source, tensors))

    def recv_anysource(self, tensors: list[Any], tag: int) -> Work:
        """As recv, from any rank, which `source_rank` of the Work returns."""
        check([one(tensors, "recv")], "recv")
        return self._received(tensors, -1, tag, self._reached("recv", -1, tensors))

    def _received(self, tensors: list[Any], source: int, tag: int, member: Member) -> Work:
        site, like = caller_line(), joined([tensors[0].new_empty(0)], moved=True)

        def begin() -> None:
            with self._posting:
                before = self._posted[: self._posted.index(posted)]
                self._posted.remove(posted)
            # an earlier receive that may match the same tensor must begin first
            for earlier_source, earlier_tag, earlier in before:
                if earlier_tag == tag and (earlier_source == source or -1 in (earlier_source, source)):
                    earlier.begin()
            member.receive(work, like.dtype, tensors[0].numel(), source, tag, site, take)

        def take(array: Any) -> None:
            write(tensors[0], array)

        name = "recv" if source >= 0 else "recvAnySource"
        work = Work(f"{self.name()}:{name}", tensors, tensors, begin=begin)
        posted = (source, tag, work)
        with self._posting:
            self._posted.append(posted)
        return work

    # The names in earlier versions of PyTorch.
    _allgather_base = all_gather_single
    _reduce_scatter_base = Reductions.reduce_scatter_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    reduce_scatter_tensor_coalesced = Reductions.reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
