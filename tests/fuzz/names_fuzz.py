"""Differential fuzzing of names, views, in-place writes and the tape.

The same random program runs on PyTorch and on another library, and every visible fact is compared after
every step: values, layout, requires_grad, is_leaf, views, groups, shared storage, gradients, hooks and
their order, errors and their kind. Deviations that are listed in docs/differences.md (D1-D13) are named,
counted and skipped. The first mismatch is reduced to a minimal program and shown.

    python tests/fuzz/names_fuzz.py --programs 2000 --seed 1          # teletensor through a daemon
    python tests/fuzz/names_fuzz.py --library torch --programs 100    # PyTorch against itself
"""

import argparse
import collections
import random
import sys

import numpy as np
from layout import contiguous_strides, dense, overlaps_itself, positions
from libraries import Teletensor, Torch
from programs import BINARY, UNARY, Chooser, attempt, readable_grad

LARGE = 1e4  # numbers beyond it end a program, because rounding would hide or cause mismatches


class Side:
    """The names of one library, and the log of its hooks."""

    def __init__(self, lib):
        self.lib, self.env, self.log = lib, {}, []

    def make(self, shape, seed, requires_grad=False):
        data = np.random.RandomState(seed).uniform(-1.5, 1.5, tuple(shape)).round(2)
        return self.lib.tensor(data, requires_grad=requires_grad)

    def hook(self, tag, kind):
        def run(g):
            if g is None:  # D12: PyTorch calls hooks of an unused output of unbind with None
                return None
            self.log.append((tag, self.lib.array(g)))
            return g * 2.0 if kind == "scale" else None

        return run

    def step(self, s):
        """Runs one step; the names that it makes are added to env."""
        with self.lib.grad_mode(not s.get("ng")):
            made = self.act(s)
        if "out" in s:
            made = made if isinstance(made, (list, tuple)) else [made]
            for i, h in enumerate(made):
                if h is not None:
                    self.env[s["out"] + (chr(97 + i) if len(made) > 1 else "")] = h

    def act(self, s):
        op, env, p = s["op"], self.env, s.get("p")
        a, b = env.get(s.get("a")), env.get(s.get("b"))
        other = b if b is not None else p
        if op == "new":
            return self.make(*p)
        if op == "custom":
            return self.lib.custom(a)
        if op in UNARY or op == "detach":
            return getattr(a, op)()
        if op in BINARY:
            return a + other if op == "add" else a * other
        if op in ("select", "narrow", "transpose", "unbind"):
            return getattr(a, op)(*p)
        if op in ("view", "reshape", "expand"):
            return getattr(a, op)(p)
        if op == "slice":
            return a[p]
        if op == "sum":
            return a.sum() if p is None else a.sum(p)
        if op == "matmul":
            return a.matmul(b)
        if op == "data":
            return a.data
        if op == "getgrad":
            return a.grad
        if op == "grad":
            return self.grad(a, s)
        self.change(op, s, a, b, other)
        return None

    def grad(self, a, s):
        p = s["p"]
        seed = None if p[0] is None else [self.make(a.shape, p[0])]
        got = self.lib.grad([a], [self.env[n] for n in s["ins"]], seed, retain_graph=p[1],
                            create_graph=p[2], allow_unused=p[3])
        for i, g in enumerate(got):
            if g is not None:
                self.env[s["out"] + chr(97 + i)] = g

    def change(self, op, s, a, b, other):
        p = s.get("p")
        if op in ("neg_", "sin_", "exp_", "tanh_"):
            getattr(a, op)()
        elif op in ("add_", "mul_", "copy_", "fill_"):
            getattr(a, op)(other)
        elif op == "setitem":
            a[p[0]] = b if b is not None else p[1]
        elif op == "setdata":
            a.data = b
        elif op == "rg":
            a.requires_grad_(p)
        elif op == "retain":
            a.retain_grad()
        elif op == "hook":
            a.register_hook(self.hook(p[0], p[1]))
        elif op == "backward":
            seed = None if p[0] is None else self.make(a.shape, p[0])
            a.backward(seed, retain_graph=p[1], create_graph=p[2])
        elif op == "setgrad":
            a.grad = b
        elif op == "gradnone":
            a.grad = None
        elif op == "gradzero":
            if a.grad is not None:
                a.grad.fill_(0.0)
        elif op == "drop":
            del self.env[s["a"]]
        else:
            raise KeyError(op)


# ---------------------------------------------------------------- comparing

def close(x, y):
    return x.shape == y.shape and np.allclose(x, y, rtol=1e-7, atol=1e-8, equal_nan=True)


def errors_of(side, call):
    """Returns (result, None) or (None, the kind of its RuntimeError).

    The error must not be stored in a local variable, because its traceback would keep this frame, and hence
    the step's tensors, alive until a garbage collection.
    """
    try:
        return call(), None
    except RuntimeError as error:
        return None, side.lib.kind_of(error)


def mismatch(ref, sub, look_at_tape):
    """The first visible fact in which the two sides differ, "D7", or None."""
    if set(ref.env) != set(sub.env):
        return f"names differ: {set(ref.env) ^ set(sub.env)}"
    names, r, s = sorted(ref.env), ref.lib, sub.lib
    gradients = []
    ref_tensors, sub_tensors = [ref.env[n] for n in names], [sub.env[n] for n in names]
    for n, t, m in zip(names, ref_tensors, sub_tensors):
        if r.layout(t) != s.layout(m):
            return f"{n}: layout {r.layout(t)}, ours {s.layout(m)}"
        if t.requires_grad != m.requires_grad:
            return f"{n}: requires_grad {t.requires_grad}"
        if r.is_view(t) != s.is_view(m):
            return f"{n}: is_view {r.is_view(t)}"
        if look_at_tape:
            x, y = errors_of(ref, lambda t=t: t.is_leaf), errors_of(sub, lambda m=m: m.is_leaf)
            if x != y:
                return f"{n}: is_leaf {x}, ours {y}"
        (tg, t_err), (mg, m_err) = (errors_of(ref, lambda t=t: t.grad),
                                    errors_of(sub, lambda m=m: m.grad))
        if t_err != m_err:
            return f"{n}: reading grad: {t_err}, ours {m_err}"
        if (tg is None) != (mg is None):
            return f"{n}.grad: {tg}, ours {mg if mg is None else s.array(mg)}"
        if tg is None:
            continue
        if r.layout(tg) != s.layout(mg):
            (shape, x, *rest), (ours, y, *others) = r.layout(tg), s.layout(mg)
            if (shape, rest) == (ours, others) and all(
                    i == j or size == 1 for i, j, size in zip(x, y, shape)):
                return "D7"
            return f"{n}.grad: layout {r.layout(tg)}, ours {s.layout(mg)}"
        if tg.requires_grad != mg.requires_grad:
            return f"{n}.grad: requires_grad {tg.requires_grad}"
        gradients.append((n + ".grad", tg, mg))
    labels = names + [g[0] for g in gradients]
    ref_tensors += [g[1] for g in gradients]
    sub_tensors += [g[2] for g in gradients]
    for n, x, y in zip(labels, r.arrays(ref_tensors), s.arrays(sub_tensors)):
        if not close(x, y):
            return f"{n}: values {x}, ours {y}"
    for what, x, y in (("storage sharing", r.cells(ref_tensors), s.cells(sub_tensors)),
                       ("groups", r.groups(ref_tensors), s.groups(sub_tensors))):
        if x != y:
            return f"{what} of {labels}: {x}, ours {y}"
    if [h[0] for h in ref.log] != [h[0] for h in sub.log]:
        return f"hooks ran: {[h[0] for h in ref.log]}, ours {[h[0] for h in sub.log]}"
    for (tag, x), (_, y) in zip(ref.log, sub.log):
        if not close(x, y):
            return f"hook {tag} saw {x}, ours {y}"
    return None


# ---------------------------------------------------------------- deviations (docs/differences.md)

def footprint(t):
    layout = tuple(t.shape), t.stride(), t.storage_offset()
    return layout, set(positions(*layout).ravel().tolist())


def reads_what_it_writes(dest, src):
    """D3: the operand overlaps the destination without being exactly the same."""
    if dest.untyped_storage().data_ptr() != src.untyped_storage().data_ptr():
        return False
    (g1, p1), (g2, p2) = footprint(dest), footprint(src)
    return bool(p1 & p2) and g1 != g2


def deviates(s, env):
    """The deviation that this step would cause, or None. Looks only at the reference."""
    op, a, b = s["op"], env.get(s.get("a")), env.get(s.get("b"))
    writes = op.endswith("_") or op == "setitem"
    dest = a if op != "setitem" else a.detach()[s["p"][0]]
    if writes and b is not None and reads_what_it_writes(dest, b):
        return "D3"
    recorded = writes and not s.get("ng") and (a.requires_grad or b is not None and b.requires_grad)
    if recorded and (op in ("fill_", "setitem") or op == "copy_" and footprint(a) == footprint(b)):
        if overlaps_itself(dest):
            return "D6"
    base = a._base if a is not None and a._is_view() else a
    if writes and base is not None and overlaps_itself(base):
        return "D8"
    if op in ("retain", "rg") and attempt(lambda: a.is_leaf)[1]:
        return "D11"
    if op == "grad" and any("Unbind" in str(attempt(lambda n=n: env[n].grad_fn)[0]) for n in s["ins"]):
        return "D12"
    if op == "setdata" and any(t is not a and (t._base is a or a._is_view()) for t in env.values()):
        return "D9"
    if op == "setgrad" and b is not None and overlaps_itself(b):
        return "D10"
    return None


def own_grads(ref, before, counts):
    """D4, D7: PyTorch may give two names the memory of one gradient, or unusual strides; teletensor never
    does.

    Counts these cases, and replaces the gradient of the reference by a copy like teletensor's.
    """
    torch = ref.lib.module
    everything = {}
    for t in ref.env.values():
        everything[id(t)] = t
        if (g := readable_grad(t)) is not None:
            everything[id(g)] = g
    held = collections.Counter(t.untyped_storage().data_ptr() for t in everything.values())
    for t in ref.env.values():
        g = readable_grad(t)
        if g is None or id(t) in before or g.requires_grad:
            continue
        where = g.untyped_storage().data_ptr()
        if held[where] > 1:
            held[where] -= 1
            t.grad = g = g.clone()
            counts["D4"] += 1
        shape, strides = tuple(t.shape), t.stride()
        keeps = dense(shape, strides) and attempt(lambda t=t: t.is_leaf)[0]
        want = strides if keeps else contiguous_strides(shape)
        if g.stride() != want:
            t.grad = torch.empty_strided(g.shape, want, dtype=g.dtype).copy_(g)
            counts["D7"] += 1


# ---------------------------------------------------------------- running a program

def runnable(s, env):
    wants = [s[k] for k in ("a", "b") if k in s] + s.get("ins", [])
    if any(n not in env for n in wants):
        return False
    a = env.get(s.get("a"))
    if s["op"] == "setdata" and (a.shape != env[s["b"]].shape or a is env[s["b"]]):
        return False
    return s["op"] != "getgrad" or readable_grad(a) is not None


class Fuzzer:
    """Compares `subject` with the reference. `every`: compares all facts only after every n-th step."""

    def __init__(self, reference, subject, every=1):
        self.reference, self.subject, self.every = reference, subject, every
        self.counts = collections.Counter()

    def run(self, program, choose=None, length=0):
        """Runs `program` (or lets `choose` generate it step by step). Returns the text of a mismatch, or
        None."""
        self.reference.reset()
        self.subject.reset()
        ref, sub = Side(self.reference), Side(self.subject)
        head, i = program[0], 1
        while i < len(program) or (choose and i <= length):
            if i >= len(program):
                program.append(choose(ref.env, i))
            s = program[i]
            i += 1
            if not runnable(s, ref.env):
                continue
            last = i >= len(program) and not (choose and i <= length)
            ended, bad = self.step(head, s, ref, sub, last, i)
            if bad or ended:
                return bad
        self.counts["ran to the end"] += 1
        return None

    def step(self, head, s, ref, sub, last, i):
        """Returns (whether the program ends here, the mismatch or None)."""
        deviation = deviates(s, ref.env)
        if deviation:
            self.counts[deviation] += 1
            return False, None
        before = {id(t) for t in ref.env.values() if readable_grad(t) is not None}
        writes = s["op"] == "setitem" or s["op"].endswith("_")
        if writes or s["op"] in ("retain", "rg"):
            attempt(lambda: ref.env[s["a"]].is_leaf)  # D11: otherwise PyTorch's answer may be outdated
        with ref.lib.saved_values(head["snap"]):
            _, wanted = errors_of(ref, lambda: ref.step(s))
        _, got = errors_of(sub, lambda: sub.step(s))
        self.count(s, wanted, writes, sub)
        if not head["snap"] and s["op"] in ("backward", "grad") and (
                wanted == "saved_modified" or wanted in ("no_grad_view", "multi_view") and not got):
            self.counts["D1"] += 1
            return True, None
        if wanted != got:
            return True, f"step {s}: error {wanted}, ours {got}"
        if wanted in ("second_backward", "unused", "leaf_moved"):
            self.counts["D5"] += 1
            return True, None
        if s["op"] == "backward":
            own_grads(ref, before, self.counts)
        if not last and i % self.every:
            return False, None
        bad = mismatch(ref, sub, head["look"] or last)
        if bad == "D7":
            self.counts["D7"] += 1
            return True, None
        if bad:
            return True, f"after step {s}: {bad}"
        if any(t.detach().abs().max() > LARGE or t.isnan().any() for t in ref.env.values()):
            self.counts["ended: large numbers"] += 1
            return True, None
        return False, None

    def count(self, s, error, writes, sub):
        self.counts["steps"] += 1
        self.counts["op " + s["op"]] += 1
        if error:
            self.counts["error " + error] += 1
        elif writes and not s.get("ng") and sub.env[s["a"]].requires_grad:
            through = " through a view" if sub.lib.is_view(sub.env[s["a"]]) else ""
            self.counts["recorded in-place" + through] += 1

    def fails(self, program, choose=None, length=0):
        """As run(); a crash of the subject counts as a mismatch."""
        try:
            return self.run(program, choose, length)
        except Exception as error:
            return f"crash {type(error).__name__}: {error}"

    def shrink(self, program):
        """Drops steps as long as a mismatch remains."""
        counts, self.counts = self.counts, collections.Counter()
        size = len(program) // 2
        while size:
            i = 1
            while i < len(program):
                shorter = program[:i] + program[i + size:]
                if self.fails([dict(s) for s in shorter]):
                    program = shorter
                else:
                    i += size
            size = size // 2
        self.counts = counts
        return program

    def programs(self, count, seed, progress=None):
        """Runs `count` random programs; returns the first mismatch as text, or None."""
        for k in range(count):
            rng = random.Random(f"{seed}.{k}")
            head = {"snap": rng.random() < 0.6, "look": rng.random() < 0.75}
            program = [head]
            bad = self.fails(program, Chooser(rng, head["snap"]), rng.randrange(5, 41))
            self.counts["programs"] += 1
            if bad:
                short = self.shrink(program)
                lines = "\n".join(f"  {s}" for s in short)
                return f"program {seed}.{k}: {bad}\nshrunk:\n{lines}\n -> {self.fails(short)}"
            if progress:
                progress(k)
        return None


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--library", choices=("teletensor", "torch"), default="teletensor")
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    subject = Teletensor() if args.library == "teletensor" else Torch()
    fuzzer = Fuzzer(Torch(), subject, args.every)
    bad = fuzzer.programs(args.programs, args.seed)
    print({k: v for k, v in sorted(fuzzer.counts.items())})
    if bad:
        print(bad)
        sys.exit(1)


if __name__ == "__main__":
    main()
