"""save and jit.save write to a path as open(path, "wb") does: through links, into pipes and devices."""

import contextlib
import errno
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile
import threading

import pytest
from teletensor._files import replace as _replace


def save(tt, path):
    tt.save({"w": tt.ones(3)}, path)


def save_function(tt, path):
    double = tt.compile(lambda x: x * 2)
    double(tt.ones(3))
    tt.jit.save(double, path)


WRITERS = pytest.mark.parametrize("write", [save, save_function])


def readable(tt, path, write):
    if write is save:
        return tt.load(path)["w"].tolist() == [1, 1, 1]
    return tt.jit.load(path)(tt.ones(3)).tolist() == [2, 2, 2]


@contextlib.contextmanager
def ordinary_user():
    """Within the context the effective user of this process is not root."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def open_folder():
    """A folder that other users can access, unlike pytest's own folders."""
    path = pathlib.Path(tempfile.mkdtemp())
    path.chmod(0o777)
    yield path
    path.chmod(0o700)
    shutil.rmtree(path)


def put(path, text=b"new"):
    with _replace.written(path) as file:
        file.write(text)


@WRITERS
@pytest.mark.parametrize("there", [True, False])
def test_through_symbolic_links(tt, tmp_path, write, there):
    (tmp_path / "runs").mkdir()
    real = tmp_path / "runs" / "real.st"
    if there:
        real.write_bytes(b"old")
    (tmp_path / "one").symlink_to("runs/real.st")
    (tmp_path / "two").symlink_to("one")
    write(tt, tmp_path / "two")
    assert (tmp_path / "two").is_symlink() and (tmp_path / "one").is_symlink()
    assert not real.is_symlink() and readable(tt, real, write)
    assert [p.name for p in real.parent.iterdir()] == ["real.st"]


@WRITERS
def test_into_a_pipe(tt, tmp_path, write):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    got = []
    reader = threading.Thread(target=lambda: got.append(path.read_bytes()))
    reader.start()
    write(tt, path)
    reader.join()
    assert stat.S_ISFIFO(path.lstat().st_mode) and os.listdir(tmp_path) == ["pipe"]
    (tmp_path / "copy").write_bytes(got[0])
    assert readable(tt, tmp_path / "copy", write)


@WRITERS
def test_into_a_device(tt, tmp_path, write):
    """A device node made for the test: a fault must not replace the machine's /dev/null."""
    path = tmp_path / "null"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"x")
    except PermissionError:
        pytest.skip("needs root, and a file system with devices")
    write(tt, path)
    assert stat.S_ISCHR(path.lstat().st_mode) and os.listdir(tmp_path) == ["null"]


@WRITERS
def test_through_a_descriptor(tt, tmp_path, write):
    """The path of a descriptor refers to a file that may no longer have a name."""
    path = tmp_path / "x"
    with open(path, "w+b") as file:
        path.unlink()
        write(tt, f"/proc/self/fd/{file.fileno()}")
        assert not os.listdir(tmp_path)
        path.write_bytes(file.read())
    assert readable(tt, path, write)


@WRITERS
@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_the_mode_is_kept(tt, tmp_path, write, mode):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    path.chmod(mode)
    write(tt, path)
    assert stat.S_IMODE(path.stat().st_mode) == mode and readable(tt, path, write)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0])
def test_a_new_file_has_the_mode_of_the_mask(tt, tmp_path, mask):
    before = os.umask(mask)
    try:
        save(tt, tmp_path / "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o666 & ~mask


@WRITERS
def test_hard_links_stay_one_file(tt, tmp_path, write):
    path = tmp_path / "x"
    path.write_bytes(b"old" * 10000)
    os.link(path, tmp_path / "other")
    write(tt, path)
    assert path.samefile(tmp_path / "other") and readable(tt, tmp_path / "other", write)


@pytest.mark.parametrize("length", [200, 240, 255])
def test_names_of_any_length(tt, tmp_path, length):
    path = tmp_path / ("x" * length)
    for _ in range(2):
        save(tt, path)
        assert readable(tt, path, save) and os.listdir(tmp_path) == [path.name]
    with pytest.raises(OSError) as raised:
        save(tt, tmp_path / ("x" * 256))
    assert raised.value.errno == errno.ENAMETOOLONG


def test_paths_of_bytes(tt, tmp_path):
    path = os.fsencode(tmp_path) + b"/\xff\xc3\xa4"  # no UTF-8
    for _ in range(2):
        save(tt, path)
        assert tt.load(path)["w"].tolist() == [1, 1, 1] and os.listdir(os.fsencode(tmp_path)) == [path[-3:]]
    with open(path, "r+b") as file:
        file.truncate(20)
    with pytest.raises(ValueError, match="cut short"):
        tt.load(path)


def test_relative_paths(tt, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        save(tt, "x")
    assert os.listdir(tmp_path) == ["x"] and readable(tt, "x", save)


@pytest.mark.parametrize("name", ["", ".", "missing/x", "missing/", "folder", "folder/", "folder/.."])
def test_what_open_refuses(tt, tmp_path, name):
    (tmp_path / "folder").mkdir()
    path = f"{tmp_path}/{name}" if name else ""
    with pytest.raises(OSError) as expected:
        open(path, "wb")
    with pytest.raises(type(expected.value)) as raised:
        save(tt, path)
    assert str(raised.value) == str(expected.value)
    assert os.listdir(tmp_path) == ["folder"] and not os.listdir(tmp_path / "folder")


def test_a_read_only_file_is_refused(open_folder):
    path = open_folder / "best"
    path.write_bytes(b"old")
    path.chmod(0o444)
    with ordinary_user(), pytest.raises(PermissionError) as raised:
        put(path)
    assert raised.value.filename == str(path)
    assert path.read_bytes() == b"old" and stat.S_IMODE(path.stat().st_mode) == 0o444
    assert os.listdir(open_folder) == ["best"]


def test_a_file_in_a_folder_that_cannot_be_changed(open_folder):
    path = open_folder / "x"
    path.write_bytes(b"longer than before")
    path.chmod(0o666)
    open_folder.chmod(0o555)
    with ordinary_user():
        put(path)
        with pytest.raises(PermissionError) as raised:
            put(open_folder / "y")
    assert raised.value.filename == str(open_folder / "y")
    open_folder.chmod(0o755)
    assert path.read_bytes() == b"new" and os.listdir(open_folder) == ["x"]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to make a file of another user")
@pytest.mark.parametrize("folder", [0o777, 0o1777])
@pytest.mark.parametrize("user", ["root", "another"])
def test_another_users_file_stays_his(open_folder, folder, user):
    path = open_folder / "x"
    path.write_bytes(b"longer than before")
    path.chmod(0o666)
    os.chown(path, 4321, 4322)
    os.chown(open_folder, 4321, 4322)
    open_folder.chmod(folder)
    with ordinary_user() if user == "another" else contextlib.nullcontext():
        put(path)
    status = path.stat()
    assert (status.st_uid, status.st_gid) == (4321, 4322) and path.read_bytes() == b"new"
    assert os.listdir(open_folder) == ["x"]


def test_a_file_that_cannot_be_renamed_over(tmp_path, monkeypatch):
    """The path cannot be replaced, for example because it is a mount point: EBUSY."""
    path = tmp_path / "x"
    path.write_bytes(b"longer than before")

    def busy(*paths):
        raise OSError(errno.EBUSY, "busy")
    monkeypatch.setattr(_replace.os, "replace", busy)
    put(path)
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["x"]


def test_extended_attributes_are_kept(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    try:
        os.setxattr(path, "user.origin", b"run 7")
    except OSError:
        pytest.skip("the file system has no extended attributes")
    put(path)
    assert os.getxattr(path, "user.origin") == b"run 7" and path.read_bytes() == b"new"


def test_an_interrupted_write_leaves_nothing(tmp_path):
    """KeyboardInterrupt at any place of the writer leaves the old file or the new one, and no other file."""
    for old in (None, b"old"):
        path = tmp_path / "x"
        path.unlink(missing_ok=True)
        if old:
            path.write_bytes(old)
        with pytest.raises(KeyboardInterrupt), _replace.written(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt
        assert (path.read_bytes() if path.exists() else None) == old
        assert os.listdir(tmp_path) == (["x"] if old else [])


def test_files_that_take_a_part_at_a_time(tt, tmp_path):
    class Slow:
        def __init__(self):
            self.data = b""

        def write(self, part):
            taken = bytes(part[:1000])
            self.data += taken
            return len(taken)

    slow = Slow()
    tt.save({"w": tt.arange(5000)}, slow)
    (tmp_path / "x").write_bytes(slow.data)
    assert tt.load(tmp_path / "x")["w"].tolist() == list(range(5000))


def test_standard_output(tt, shared_daemon, tmp_path):
    """/dev/stdout of a process whose output is a pipe."""
    program = ("import teletensor as tt\n"
               f"tt.connect({shared_daemon.tcp!r}, token={shared_daemon.token!r})\n"
               "tt.save({'w': tt.ones(3)}, '/dev/stdout')\n")
    made = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, check=True)
    (tmp_path / "x").write_bytes(made.stdout)
    assert readable(tt, tmp_path / "x", save)
