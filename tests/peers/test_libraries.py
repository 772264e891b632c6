"""Tests that libraries which accept several types of arrays accept tensors: einops, pandas, Matplotlib,
seaborn."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest


@pytest.mark.parametrize("first", ["einops", "teletensor"])
def test_einops_in_either_order(shared_daemon, first):
    """Importing teletensor does not import einops."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(f"""
        import sys
        import {first}
        assert ("einops" in sys.modules) == ({first!r} == "einops")
        import teletensor as tt
        from einops import rearrange
        tt.connect({shared_daemon.unix!r})
        assert rearrange(tt.ones(2, 6), "a (b c) -> c a b", b=2).shape == (3, 2, 2)
        assert "torch" not in sys.modules
    """)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def test_einops(tt):
    import einops

    x = np.arange(24.0, dtype=np.float32).reshape(2, 3, 4)
    t = tt.tensor(x)
    for pattern, sizes in (("a b c -> c a b", {}), ("a b (c d) -> (a d) b c", {"d": 2}), ("a ... -> ... a", {})):
        want = einops.rearrange(x, pattern, **sizes)
        np.testing.assert_array_equal(einops.rearrange(t, pattern, **sizes).numpy(), want)
    for how in ("min", "max", "sum", "mean", "prod"):
        np.testing.assert_allclose(einops.reduce(t, "a b c -> b", how).numpy(), einops.reduce(x, "a b c -> b", how))
    for how in ("any", "all"):
        assert einops.reduce(t > 3, "a b c -> b", how).tolist() == einops.reduce(x > 3, "a b c -> b", how).tolist()
    np.testing.assert_array_equal(einops.repeat(t, "a b c -> a r b (c s)", r=2, s=3).numpy(),
                                  einops.repeat(x, "a b c -> a r b (c s)", r=2, s=3))
    np.testing.assert_allclose(einops.einsum(t, t, "a b c, d b c -> a d").numpy(),
                               einops.einsum(x, x, "a b c, d b c -> a d"))
    packed, shapes = einops.pack([t, t[0, 0]], "*")
    assert packed.shape == (28,) and [each.shape for each in einops.unpack(packed, shapes, "*")] == [(2, 3, 4), (4,)]
    assert einops.rearrange([t[0], t[1]], "n a b -> a b n").shape == (3, 4, 2)
    assert einops.parse_shape(t, "a _ c") == {"a": 2, "c": 4}
    with pytest.raises(einops.EinopsError):
        einops.rearrange(t, "a b -> b a")


def test_einops_of_parameters_and_captured_functions(tt):
    import einops

    w = tt.nn.Parameter(tt.ones(2, 3))
    einops.reduce(w, "a b -> a", "sum").sum().backward()
    assert w.grad.tolist() == [[1.0] * 3] * 2
    call = tt.compile(lambda x: einops.rearrange(x, "a b -> b a") * 2)
    for _ in range(3):
        assert call(tt.ones(2, 3)).shape == (3, 2)


def test_pandas(tt):
    import pandas

    x = tt.tensor([[1.0, 2.0], [3.0, 4.0]])
    frame = pandas.DataFrame(x, columns=["a", "b"])
    assert frame["b"].tolist() == [2.0, 4.0] and pandas.Series(x[0]).sum() == 3.0
    frame["c"] = x[:, 0]
    assert tt.tensor(frame.to_numpy()).shape == (2, 3) and tt.tensor(frame["c"].to_numpy()).tolist() == [1.0, 3.0]


@pytest.fixture
def axes():
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    yield axes
    figure.canvas.draw()
    pyplot.close(figure)


def test_matplotlib(tt, axes):
    x, y = tt.arange(3.0), tt.tensor([1.0, 4.0, 9.0])
    (line,) = axes.plot(x, y)
    assert line.get_ydata().tolist() == [1.0, 4.0, 9.0]
    axes.scatter(x, y, c=y)
    axes.bar(x, y, yerr=x)
    axes.hist(y)
    axes.fill_between(x, x, y)
    axes.imshow(tt.rand(3, 4))


def test_seaborn(tt, axes):
    import seaborn

    x, y = tt.arange(3.0), tt.tensor([1.0, 4.0, 9.0])
    seaborn.lineplot(x=x.numpy(), y=y.numpy(), ax=axes)
    seaborn.heatmap(tt.rand(3, 3).numpy(), ax=axes, cbar=False)
    assert axes.lines[0].get_ydata().tolist() == [1.0, 4.0, 9.0]
