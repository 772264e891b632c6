"""Every function and method that PyTorch and teletensor have takes each parameter under each name that PyTorch
has for it. The names are those of PyTorch's native schemas, from which its Python functions are generated."""

import types

import pytest

torch = pytest.importorskip("torch")

# Names that say nothing about a result here: devices without layouts and names of dimensions.
SKIPPED = {"layout", "pin_memory", "names", "dimname", "async"}
# Names of forms that only TorchScript or a GPU has; embedding_bag is that of nn.functional here.
NOT_TAKEN = {("eq", "b"), ("ne", "b"), ("sort", "reverse"), *(
    (name, "out_dtype") for name in ("mm", "bmm", "addmm", "baddbmm")), ("embedding_bag", "indices")}


def names_of(schema):
    """The names of a schema's parameters; none for a schema that no function of Python has."""
    arguments = schema.arguments
    tensors = [a for a in arguments if "Tensor" in str(a.type)]
    written = [a for a in arguments if a.kwarg_only and a.alias_info and a.alias_info.is_write]
    if not tensors and schema.name != "aten::arange" or written or any("Dimname" in str(a.type) for a in arguments):
        return []
    return [a.name for a in arguments if a.name not in SKIPPED]


def schemas():
    """Name of a function: the names of its parameters in all its forms."""
    found = {}
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("aten::") and not schema.name.startswith("aten::_"):
            found.setdefault(schema.name.removeprefix("aten::"), {}).update(dict.fromkeys(names_of(schema)))
    return found


def cases():
    import teletensor as tt

    for name, names in sorted(schemas().items()):
        if isinstance(getattr(torch, name, None), types.BuiltinFunctionType) and hasattr(tt, name):
            yield f"tt.{name}", ["input" if each == "self" else each for each in names]
        if isinstance(getattr(torch.Tensor, name, None), types.MethodDescriptorType) and hasattr(tt.Tensor, name):
            yield f"Tensor.{name}", [each for each in names if each != "self"]


CASES = dict(cases())


def takes(function, name):
    try:
        function(**{name: object()})
    except TypeError as error:
        assert "<locals>" not in str(error) and "_(" not in str(error).replace(function.__name__ + "(", "")
        return "unexpected keyword argument" not in str(error)
    except Exception:
        return True
    return True


@pytest.mark.parametrize("place", CASES)
def test_names(tt, place):
    kind, _, name = place.partition(".")
    function = getattr(tt, name) if kind == "tt" else getattr(tt.ones(2, 2), name)
    refused = [each for each in CASES[place] if (name, each) not in NOT_TAKEN and not takes(function, each)]
    assert not refused


def test_the_schemas_are_found():
    assert len(CASES) > 700 and CASES["tt.mm"][:2] == ["input", "mat2"] and "other" in CASES["Tensor.max"]


CALLS = [
    lambda m, a, b: m.matmul(input=a, other=b), lambda m, a, b: m.mm(a, mat2=b), lambda m, a, b: m.mv(a, vec=b[0]),
    lambda m, a, b: m.bmm(a[None], mat2=b[None]), lambda m, a, b: m.dot(a[0], tensor=b[0]),
    lambda m, a, b: a.view(size=(4,)), lambda m, a, b: a.repeat(repeats=(2, 1)), lambda m, a, b: a.view(dtype=m.int32),
    lambda m, a, b: m.max(a, other=b), lambda m, a, b: a.min(other=b), lambda m, a, b: m.swapaxes(a, axis0=0, axis1=1),
    lambda m, a, b: a.clone().resize_(size=(1, 2)), lambda m, a, b: a.sum_to_size(size=(1, 2)),
    lambda m, a, b: m.cat(m.tensor_split(a, sections=2)[::-1]), lambda m, a, b: m.hsplit(a, indices=[1])[1],
    lambda m, a, b: m.cholesky_inverse(input=a), lambda m, a, b: m.cholesky_solve(input=b, input2=a),
    lambda m, a, b: m.zeros(2, 2).addr_(vec1=a[0], vec2=b[0]), lambda m, a, b: a.clone().addmm_(mat1=a, mat2=b),
    lambda m, a, b: m.mul(x1=a, x2=b), lambda m, a, b: m.sum(a=a, axis=0), lambda m, a, b: m.isin(a, test_element=1.0),
    lambda m, a, b: a.clone().uniform_(to=0.0), lambda m, a, b: a.clone().random_(**{"from": 3, "to": 4}),
    lambda m, a, b: a.clone().copy_(other=b), lambda m, a, b: m.dropout(a, p=0.5, train=False),
    lambda m, a, b: m.layer_norm(a, (2,), cudnn_enable=False), lambda m, a, b: a.to(tensor=m.ones(1).double()),
    lambda m, a, b: m.ctc_loss(m.zeros(3, 1, 4).log_softmax(2), m.tensor([[1, 2]]), m.tensor([3]), m.tensor([2])),
    lambda m, a, b: m.ctc_loss(m.zeros(3, 1, 4).log_softmax(2), m.tensor([[1, 2]]), m.tensor([3]), m.tensor([2]),
                               reduction=2, zero_infinity=True),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_values(tt, number):
    ours, theirs = (CALLS[number](m, m.tensor([[4.0, 1.0], [1.0, 3.0]]), m.tensor([[1.0, 5.0], [2.0, 7.0]]))
                    for m in (tt, torch))
    assert str(ours.dtype).split(".")[1] == str(theirs.dtype).split(".")[1]
    torch.testing.assert_close(tt.to_torch(ours), theirs)


def test_facts(tt):
    for m in (tt, torch):
        assert m.ones(2, 3).size(dim=1) == 3
        assert m.result_type(tensor=m.ones(1), other=1.0) == m.float32 == m.result_type(scalar1=1, scalar2=2.0)


def test_texts_have_public_names(tt):
    x = tt.ones(2, 2)
    for call, text in ((lambda: x.std(axs=0), r"^std\(\) got an"), (lambda: x.size(foo=1), r"^size\(\) got an"),
                       (lambda: x.addr_(foo=1), r"^addr_\(\) got an"),
                       (lambda: tt.hsplit(x, foo=1), r"^hsplit\(\) got"),
                       (lambda: x.swapaxes_(foo=1), r"^transpose_\(\) got|^swapaxes_\(\) got")):
        with pytest.raises(TypeError, match=text):
            call()
