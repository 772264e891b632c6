"""Implements the reductions of c10d's ProcessGroup by ops of a group of the daemon."""

from __future__ import annotations

from typing import Any

from ._torch_caller import Caller, caller_line, one, spread
from ._torch_data import Elements, check, joined, rows, write
from ._torch_member import Member
from ._torch_work import Work

try:
    import torch
    from torch.distributed import ReduceOp
except ImportError as error:
    raise ImportError(
        "teletensor.integrations.torch_backend needs PyTorch: pip install 'teletensor[torch]'"
    ) from error

__all__ = ["Reductions"]

_COMBINATIONS = (
    (ReduceOp.PRODUCT, "product"), (ReduceOp.MIN, "min"), (ReduceOp.MAX, "max"),
    (ReduceOp.BAND, "and"), (ReduceOp.BOR, "or"), (ReduceOp.BXOR, "xor"),
)  # fmt: skip


def _reduction(opts: Any) -> bool | str:
    """The reduction: a word for all_combine, True for an average, or False for a sum."""
    op = opts.reduceOp if opts is not None else ReduceOp.SUM
    if op == ReduceOp.SUM or op == ReduceOp.AVG:
        return bool(op == ReduceOp.AVG)
    for known, word in _COMBINATIONS:
        if op == known:
            return word
    raise NotImplementedError(f"the backend teletensor has no reduction {op}")


def _reduced(member: Member, data: Elements, reduction: bool | str, site: str) -> Any:
    return member.run("all_combine" if isinstance(reduction, str) else "all_reduce", data, reduction, site)


class Reductions(Caller):
    """Sums, averages, products and similar reductions of the tensors of all ranks."""

    def allreduce(self, tensors: list[Any], opts: Any = None) -> Work:
        """Reduces the tensors of all ranks, and writes the result into the tensors of each rank."""
        if len(tensors) == 1 and tensors[0].layout == torch.sparse_coo:
            return self._sparse(tensors[0], opts)
        check(tensors, "all_reduce")
        reduction, site = _reduction(opts), caller_line()

        def call(member: Member) -> None:
            spread(_reduced(member, joined(tensors, moved=False), reduction, site), tensors)

        return self._start("all_reduce", tensors, tensors, opts, call)

    def allreduce_coalesced(self, tensors: list[Any], opts: Any = None) -> Work:
        """As allreduce; the tensors must have the same dtype."""
        return self.allreduce(tensors, opts)

    def reduce(self, tensors: list[Any], opts: Any) -> Work:
        """As allreduce, with the result on the root only."""
        tensor = one(tensors, "reduce")
        check(tensors, "reduce")
        reduction, root, site = _reduction(opts), self._root(opts), caller_line()

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
        """Reduces the tensors at this rank's index in the inputs of all ranks."""
        output, parts = one(outputs, "reduce_scatter"), self._listed(one(inputs, "reduce_scatter"))
        check([output, *parts], "reduce_scatter")
        if any(part.numel() != output.numel() for part in parts):
            raise ValueError(
                f"reduce_scatter: the inputs have {[part.numel() for part in parts]} elements, the output "
                f"has {output.numel()}"
            )
        return self._scattered("reduce_scatter", [output], [parts], opts)

    def reduce_scatter_single(self, output: Any, input: Any, opts: Any = None) -> Work:
        """As reduce_scatter, for the parts of one tensor."""
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Any], inputs: list[Any], opts: Any = None
    ) -> Work:
        """As reduce_scatter_single, for several tensors."""
        name = "reduce_scatter_tensor"
        check([*outputs, *inputs], name)
        parts = [
            self._rows(f"{name}: input", input, output)
            for output, input in zip(outputs, inputs, strict=True)
        ]
        return self._scattered(name, outputs, parts, opts)

    def _scattered(self, name: str, outputs: list[Any], inputs: list[Any], opts: Any) -> Work:
        """Implements reduce_scatter: inputs[i][r] is this rank's contribution to outputs[i] on rank r."""
        reduction, site = _reduction(opts), caller_line()

        def call(member: Member) -> None:
            data = joined([part for of_rank in zip(*inputs, strict=True) for part in of_rank], moved=False)
            if isinstance(reduction, str):
                result = rows(member.run("all_combine", data, reduction, site), self._size)[self._rank]
            else:
                shape = (self._size, data.numel // self._size)
                result = member.run("reduce_scatter", data, reduction, site, shape=shape)
            spread(result, outputs)

        return self._start(name, [part for of_all in inputs for part in of_all], outputs, opts, call)

    def _sparse(self, tensor: Any, opts: Any) -> Work:
        """Sums the sparse tensors of all ranks."""
        if _reduction(opts) is not False:
            raise ValueError("all_reduce of sparse tensors has sums only")
        site = caller_line()

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
