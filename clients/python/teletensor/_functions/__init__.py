"""PyTorch's functions where their call forms differ from the catalog's: overloads, varargs, names.

Everything else is the catalog's op itself (`_ops`). One module a group, each with its `__all__`; what
they list is exported. A function whose first parameter is a `Tensor` is a method of the same name too
(`_tensor.attach`), unless it is marked `@function_only` (`common`). A name that ends in "_" is in place.
"""

from .. import _checked
from . import (
    common,
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
from .complex import *  # noqa: F403
from .contractions import *  # noqa: F403
from .creation import *  # noqa: F403
from .elementwise import *  # noqa: F403
from .indexing import *  # noqa: F403
from .joining import *  # noqa: F403
from .linear import *  # noqa: F403
from .neural import *  # noqa: F403
from .order import *  # noqa: F403
from .queries import *  # noqa: F403
from .random import *  # noqa: F403
from .reductions import *  # noqa: F403
from .restructure import *  # noqa: F403
from .scatters import *  # noqa: F403
from .structure import *  # noqa: F403
from .typeinfo import *  # noqa: F403
from .views import *  # noqa: F403
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
globals()["__all__"] = NAMES  # as mypy reads it, an assignment would hide all that is no literal
_checked.attach(globals(), NAMES)


def methods() -> dict[str, object]:
    """What `_tensor.attach` puts on Tensor: name to function.

    A module's `METHODS` are methods only: they are not exported.
    """
    space = globals()
    found = {name: space[name] for name in NAMES if common.is_method(space[name])}
    for module in _MODULES:
        for name in getattr(module, "METHODS", ()):
            found[name] = getattr(module, name)
    return found
