"""The libraries that the fuzzer compares: PyTorch, teletensor, or a session front end in the same process.

The tensors of a library have PyTorch's methods; facts without a common spelling are queried through these
classes.
"""

import contextlib
import warnings

import numpy as np

# Texts of PyTorch's errors, and a short name for the same error of either library.
KINDS = [
    ("modified by an inplace operation", "saved_modified"), ("multiple views", "multi_view"),
    ("created in no_grad mode", "no_grad_view"),
    ("view of a view which was created in", "no_grad_view"),
    ("a view of a leaf Variable that requires grad is being", "leaf_view"),
    ("a leaf Variable that requires grad is being", "leaf"),
    ("more than one element of the written-to", "overlap"),
    ("view size is not compatible", "view"),
    ("can only change requires_grad flags of leaf", "nonleaf_flag"), ("as its own grad", "own_grad"),
    ("attempting to assign a gradient of size", "grad_shape"), ("can't retain_grad", "retain_grad"),
    ("cannot register a hook", "hook"), ("only for scalar outputs", "scalar"),
    ("Mismatch in shape", "seed_shape"), ("does not require grad and does not have", "no_graph"),
    ("differentiated Tensors does not", "no_graph_input"),
    ("appears to not have been used", "unused"),
    ("backward through the graph a second", "second_backward"),
    ("moved into the graph interior", "leaf_moved"), ("must match the size", "shape"),
    ("doesn't match the broadcast shape", "shape"), ("is invalid for input", "shape"),
    ("cannot be multiplied", "shape"), ("must match the existing size", "shape"),
    ("expanded size", "shape"),
]


class Library:
    """A library whose module follows PyTorch's names. Subclasses override what differs."""

    reference = False  # whether this is PyTorch itself

    def __init__(self, module):
        self.module = module

        class Square(module.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                y = x * x
                ctx.save_for_backward(x, y)
                return y

            @staticmethod
            def backward(ctx, g):
                x, y = ctx.saved_tensors
                return 2 * x * g + 0 * y

        self.custom = Square.apply

    def reset(self):
        """Called before each program."""

    def tensor(self, array, requires_grad):
        return self.module.tensor(array, requires_grad=requires_grad)

    def grad_mode(self, on):
        return self.module.set_grad_enabled(on)

    def grad(self, outputs, inputs, seeds, **options):
        return self.module.autograd.grad(outputs, inputs, seeds, **options)

    def saved_values(self, on):
        """A context in which the tape keeps the values that tensors had when they were saved."""
        del on
        return contextlib.nullcontext()

    def array(self, tensor):
        return np.array(tensor.detach().numpy())

    def arrays(self, tensors):
        return [self.array(t) for t in tensors]

    def layout(self, t):
        return tuple(t.shape), tuple(t.stride()), t.storage_offset(), t.is_contiguous()

    def is_view(self, tensor):
        return tensor._is_view()

    def cells(self, tensors):
        """For each tensor, the index of the first tensor with which it shares storage."""
        shares = self.module.shares_storage
        return [next(i for i, f in enumerate(tensors) if f is t or shares(f, t)) for t in tensors]

    def groups(self, tensors):
        """For each tensor, the index of the first tensor with the same base."""
        bases = [t._base if t._is_view() else t for t in tensors]
        keys = [self.identity(b) for b in bases]
        return [keys.index(k) for k in keys]

    def identity(self, tensor):
        return id(tensor)

    def kind_of(self, error):
        text = str(error)
        return next((kind for part, kind in KINDS if part in text), "other: " + text[:300])


class Torch(Library):
    reference = True

    def __init__(self):
        import torch

        warnings.simplefilter("ignore")  # warnings about .grad of non-leaves, and about create_graph
        torch.set_num_threads(1)
        super().__init__(torch)

    def grad(self, outputs, inputs, seeds, **options):
        # D7: the layout of returned gradients, and which memory they share, is teletensor's own
        got = self.module.autograd.grad(outputs, inputs, seeds, **options)
        contiguous = self.module.contiguous_format
        with self.grad_mode(options["create_graph"]):
            return [g if g is None else g.clone(memory_format=contiguous) for g in got]

    def saved_values(self, on):
        if not on:
            return contextlib.nullcontext()
        return self.module.autograd.graph.saved_tensors_hooks(lambda t: t.detach().clone(), lambda t: t)

    def array(self, tensor):
        return tensor.detach().numpy().copy()

    def cells(self, tensors):
        keys = [t.untyped_storage().data_ptr() for t in tensors]
        return [keys.index(k) for k in keys]


class Teletensor(Library):
    """teletensor with a daemon."""

    def __init__(self):
        import teletensor

        super().__init__(teletensor)
