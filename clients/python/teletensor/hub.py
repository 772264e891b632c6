"""Downloads of files and models: state_dicts by URL, and models from a folder with a hubconf.py."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import re
import sys
import tempfile
import urllib.parse
import urllib.request
from types import ModuleType
from typing import Any

from ._files import serialize as _serialize
from ._names import absent as _absent

__all__ = [
    "download_url_to_file", "get_dir", "help", "list", "load", "load_state_dict_from_url",
    "set_dir",
]

_HASH = re.compile(r"-([a-f0-9]*)\.")
_CHUNK = 1 << 17
_dir: str | None = None


def get_dir() -> str:
    """The folder for downloads: the one given to set_dir(), or else $TORCH_HOME/hub,
    $XDG_CACHE_HOME/torch/hub or ~/.cache/torch/hub, as in PyTorch."""
    if _dir is not None:
        return _dir
    cache = os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "torch")
    return os.path.join(os.path.expanduser(os.environ.get("TORCH_HOME", cache)), "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Sets the folder for downloads."""
    global _dir
    _dir = os.path.expanduser(os.fspath(d))


def download_url_to_file(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> None:
    """Downloads a URL to the file dst, which is either written completely or not at all.

    hash_prefix: the beginning of the file's SHA-256 in hexadecimal digits; RuntimeError if it differs.
    progress: shows the progress in a line on standard error."""
    folder = pathlib.Path(os.path.expanduser(dst)).resolve()
    digest = hashlib.sha256()
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"User-Agent": "teletensor.hub"})
    ) as source:
        with tempfile.NamedTemporaryFile(
            dir=folder.parent, prefix=folder.name, suffix=".part", delete=False
        ) as part:
            try:
                size = 0
                while block := source.read(_CHUNK):
                    part.write(block)
                    digest.update(block)
                    size += len(block)
                part.close()
                if hash_prefix and not digest.hexdigest().startswith(hash_prefix):
                    raise RuntimeError(
                        f"invalid hash value (expected {hash_prefix!r}, got {digest.hexdigest()!r})"
                    )
                os.replace(part.name, folder)
            except BaseException:
                os.unlink(part.name)
                raise
    if progress:
        print(f"{url}: {size} bytes in {folder}", file=sys.stderr)


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = False,
) -> Any:
    """Returns `teletensor.load` of the file at the URL, which is downloaded once into model_dir (by default
    get_dir()'s subfolder "checkpoints"). With check_hash its name contains the beginning of its SHA-256, as
    in resnet18-5c106cde.pth.

    PyTorch's files and safetensors files are read; objects that only a full pickle can contain are refused,
    whatever weights_only is."""
    folder = pathlib.Path(model_dir or os.path.join(get_dir(), "checkpoints"))
    folder.mkdir(parents=True, exist_ok=True)
    name = file_name or os.path.basename(urllib.parse.urlparse(url).path)
    if not (folder / name).exists():
        found = _HASH.search(name) if check_hash else None
        download_url_to_file(url, str(folder / name), found.group(1) if found else None, progress)
    return _serialize.load(folder / name, map_location)


def _entries(repo: str, source: str) -> ModuleType:
    """The module hubconf.py in that folder."""
    if source not in ("github", "local"):
        raise ValueError(f'Unknown source: "{source}". Allowed values: "github" | "local".')
    if source == "github":
        raise NotImplementedError(
            "hub: repositories of GitHub are not run, since their hubconf.py imports torch; clone it, "
            'change the imports and use source="local"'
        )
    folder = os.path.abspath(os.path.expanduser(repo))
    file = os.path.join(folder, "hubconf.py")
    spec = importlib.util.spec_from_file_location("hubconf", file)
    if not os.path.exists(file) or spec is None or spec.loader is None:
        raise FileNotFoundError(f"hub: there is no file {file}")
    sys.path.insert(0, folder)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _entry(repo: str, model: Any, source: str) -> Any:
    if not isinstance(model, str):
        raise ValueError("Invalid input: model should be a string of function name")
    module = _entries(repo, source)
    wanted = getattr(module, "dependencies", ())
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise RuntimeError(f"Missing dependencies: {', '.join(missing)}")
    found = getattr(module, model, None)
    if not callable(found):
        raise RuntimeError(f"Cannot find callable {model} in hubconf")
    return found


def list(
    github: str,
    force_reload: bool = False,
    skip_validation: bool = False,
    trust_repo: Any = "check",
    verbose: bool = True,
    source: str = "github",
) -> Any:
    """The names that the hubconf.py in a folder (source="local") defines."""
    module = _entries(github, source)
    return [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]


def help(
    github: str,
    model: str,
    force_reload: bool = False,
    skip_validation: bool = False,
    trust_repo: Any = "check",
    source: str = "github",
) -> Any:
    """The docstring of one of these names."""
    return _entry(github, model, source).__doc__


def load(
    repo_or_dir: str,
    model: str,
    *args: Any,
    source: str = "github",
    trust_repo: Any = "check",
    force_reload: bool = False,
    verbose: bool = True,
    skip_validation: bool = False,
    **kwargs: Any,
) -> Any:
    """Returns model(*args, **kwargs), where model is defined by the hubconf.py in a folder
    (source="local"), whose code is executed.

    NotImplementedError for source="github"; FileNotFoundError or RuntimeError if there is no such file or
    no such function in it."""
    return _entry(repo_or_dir, model, source)(*args, **kwargs)


_absent.attach(globals())
