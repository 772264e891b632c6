"""PyTorch's functions whose call forms differ from the catalog's: overloads, variable numbers of arguments,
other names.

All other functions are the catalog's ops themselves (`_ops`). There is one module per group of functions;
the names in each module's `__all__` are exported. A function whose first parameter is a `Tensor` is also a
method of the same name (`_tensor.attach`), unless it is marked `@function_only` (`common`). A name that
ends in "_" is an in-place function.
"""

from .._calls import checked as _checked
from . import (
    common,
    complex,
    contractions,
    elementwise,
    linear,
    neural,
    reductions,
    typeinfo,
    windows,
)
from .arrays import (
    creation,
    indexing,
    joining,
    order,
    queries,
    random,
    restructure,
    scatters,
    structure,
    views,
)
from .arrays.creation import *  # noqa: F403
from .arrays.indexing import *  # noqa: F403
from .arrays.joining import *  # noqa: F403
from .arrays.order import *  # noqa: F403
from .arrays.queries import *  # noqa: F403
from .arrays.random import *  # noqa: F403
from .arrays.restructure import *  # noqa: F403
from .arrays.scatters import *  # noqa: F403
from .arrays.structure import *  # noqa: F403
from .arrays.views import *  # noqa: F403
from .complex import *  # noqa: F403
from .contractions import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .linear import *  # noqa: F403
from .neural import *  # noqa: F403
from .reductions import *  # noqa: F403
from .typeinfo import *  # noqa: F403
from .windows import *  # noqa: F403

_MODULES = (
    complex,
    contractions,
    creation,
    elementwise,
    indexing,
    joining,
    linear,
    neural,
    order,
    queries,
    random,
    reductions,
    restructure,
    scatters,
    structure,
    typeinfo,
    views,
    windows,
)

from . import pointwise, products, special, statistics  # noqa: E402
from .pointwise import *  # noqa: E402, F403
from .products import *  # noqa: E402, F403
from .special import *  # noqa: E402, F403
from .statistics import *  # noqa: E402, F403

_MORE = (pointwise, products, special, statistics)

NAMES = [name for module in (*_MODULES, *_MORE) for name in module.__all__]
# if this were an assignment, mypy would ignore everything in it that is not a literal
globals()["__all__"] = NAMES
_checked.attach(globals(), NAMES)


def methods() -> dict[str, object]:
    """The methods that `_tensor.attach` adds to Tensor: name to function.

    The names in a module's `METHODS` are methods only: they are not exported.
    """
    space = globals()
    found = {name: space[name] for name in NAMES if common.is_method(space[name])}
    for module in _MODULES:
        for name in getattr(module, "METHODS", ()):
            found[name] = getattr(module, name)
    return found
