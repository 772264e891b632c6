"""tt.utils.summary, the table of a model's modules."""

import pytest


@pytest.fixture
def model(tt):
    nn = tt.nn

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(10, 4)
            self.norm = nn.BatchNorm1d(4)
            self.drop = nn.Dropout(0.5)
            self.rnn = nn.LSTM(4, 6, batch_first=True)
            self.out = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 3)))
            self.again = self.out[0]

        def forward(self, x, twice=False):
            y = self.norm(self.words(x).transpose(1, 2)).transpose(1, 2)
            y, _ = self.rnn(self.drop(y))
            return self.out(self.again(y) if twice else y)

    return Model()


def test_shapes_and_parameters(tt, model):
    model.words.weight.requires_grad_(False)
    found = tt.utils.summary(model, (2, 5), dtypes=[tt.long])
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["", "words", "norm", "drop", "rnn", "out", "out.0", "out.1", "out.1.0"]
    assert rows["rnn"].outputs == ((2, 5, 6), (1, 2, 6), (1, 2, 6))
    assert rows[""].outputs == ((2, 5, 3),) and rows["norm"].outputs == ((2, 4, 5),)
    assert found.parameters == rows[""].parameters == sum(p.numel() for p in model.parameters())
    assert found.trainable == found.parameters - 40 and rows["words"].trainable == 0
    assert found.parameter_bytes == 4 * found.parameters
    assert found.buffer_bytes == 4 * 8 + 8  # two of 4 floats, and a count
    lines = str(found).splitlines()
    assert lines[0].split() == ["module", "output", "shape", "parameters"]
    assert lines[7].startswith("  out: Sequential") and lines[8].startswith("    0: Linear")
    assert f"{found.parameters} parameters, {found.trainable} of them trainable" in lines[-1]


def test_a_shared_module_is_counted_once_with_its_calls(tt, model):
    found = tt.utils.summary(model, input_data=tt.zeros(1, 3, dtype=tt.long), twice=True)
    assert {row.name: row.calls for row in found.rows}["out.0"] == 2
    assert "calls" in str(found).splitlines()[0] and "again" not in str(found)
    assert found.parameters == sum(p.numel() for p in model.parameters())


def test_depth_and_no_inputs(tt, model):
    assert [row.name for row in tt.utils.summary(model, depth=0).rows] == [""]
    found = tt.utils.summary(model, depth=1)
    assert "out" in [row.name for row in found.rows] and "out.0" not in [row.name for row in found.rows]
    assert all(row.outputs == () for row in found.rows) and "output shape" not in str(found)
    assert [row.depth for row in tt.utils.summary(model, depth=None).rows][-1] == 3


@pytest.mark.parametrize("wrong", [False, True])
def test_the_model_is_as_it_was(tt, model, wrong):
    model.rnn.eval()
    numbers = tt.get_rng_state()
    if wrong:
        with pytest.raises(ValueError, match="4D input"):
            tt.utils.summary(model, (2, 5, 7), dtypes=[tt.long])
    else:
        tt.utils.summary(model, (2, 5), dtypes=[tt.long])
    assert model.training and model.norm.training and not model.rnn.training
    assert model.norm.num_batches_tracked.item() == 0 and model.norm.running_mean.tolist() == [0.0] * 4
    assert not any(module._hooks for module in model.modules())
    assert tt.get_rng_state() == numbers


def test_several_inputs(tt):
    layer = tt.nn.Bilinear(3, 4, 5)
    for given in ({"input_size": [(2, 3), (2, 4)]}, {"input_data": [tt.ones(2, 3), tt.ones(2, 4)]}):
        assert tt.utils.summary(layer, **given).rows[0].outputs == ((2, 5),)


def test_wrong_arguments(tt, model):
    with pytest.raises(TypeError, match="summary: a Module is expected, not Tensor"):
        tt.utils.summary(tt.ones(2))
    with pytest.raises(ValueError, match="give input_size or input_data, not both"):
        tt.utils.summary(model, (2, 5), tt.ones(2))
    with pytest.raises(ValueError, match="1 input sizes do not match 2 dtypes"):
        tt.utils.summary(model, (2, 5), dtypes=[tt.long, tt.long])
