"""`teletensor cert`: the files that it makes, replaces and refuses to replace."""

import subprocess
import sys

import pytest
from support.tls import openssl


def cert(folder, *words):
    return subprocess.run([sys.executable, "-m", "teletensor.cli", "cert", *words, "--output", str(folder)],
                          capture_output=True, text=True, timeout=120)


def text_of(path):
    return subprocess.run(["openssl", "x509", "-in", str(path), "-noout", "-text"], capture_output=True, text=True,
                          timeout=60, check=True).stdout


def test_what_it_makes(tmp_path):
    folder = tmp_path / "new" / "folder"
    done = cert(folder, "the-box", "the-box.example.org", "192.0.2.7", "2001:db8::7", "--days", "30")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.iterdir()) == ["ca.key", "ca.pem", "server.key", "server.pem"]
    openssl("verify", "-x509_strict", "-CAfile", folder / "ca.pem", "-purpose", "sslserver", folder / "server.pem")
    text = text_of(folder / "server.pem")
    for name in ("DNS:the-box,", "DNS:the-box.example.org", "IP Address:192.0.2.7", "IP Address:2001:DB8:0:0:0:0:0:7",
                 "CA:FALSE"):
        assert name in text, text
    assert "CA:TRUE" in text_of(folder / "ca.pem")


def test_an_authority_that_is_there_signs_the_next_one(tmp_path):
    assert cert(tmp_path, "one").returncode == 0
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = cert(tmp_path, "two")
    assert done.returncode == 0 and "the authority of before" in done.stdout
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert {name for name in before if before[name] != after[name]} == {"server.key", "server.pem"}
    openssl("verify", "-CAfile", tmp_path / "ca.pem", tmp_path / "server.pem")
    assert "DNS:two" in text_of(tmp_path / "server.pem")


def test_certificates_of_peers(tmp_path):
    for name in ("box1", "box2"):
        done = cert(tmp_path, "--peer", name, "192.0.2.7")
        assert done.returncode == 0, done.stderr
        assert "--peer-cert and --peer-key" in done.stdout and "--peer-ca" in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "box1.key", "box1.pem", "box2.key", "box2.pem", "ca.key", "ca.pem"]
    for purpose in ("sslserver", "sslclient"):
        openssl("verify", "-x509_strict", "-CAfile", tmp_path / "ca.pem", "-purpose", purpose, tmp_path / "box2.pem")
    assert "DNS:box2, IP Address:192.0.2.7" in text_of(tmp_path / "box2.pem")
    done = cert(tmp_path, "--peer", "ca")
    assert done.returncode == 1 and "give another name first" in done.stderr


@pytest.mark.parametrize("host", ["the-box:7420", "a b", "", "a,DNS:b", "a\nb", "-x.example.org", "x" * 300])
def test_what_is_no_host(tmp_path, host):
    done = cert(tmp_path / "none", "--", host) if host.startswith("-") else cert(tmp_path / "none", host)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert not (tmp_path / "none").exists()


def test_what_it_cannot_go_on_from(tmp_path, monkeypatch):
    (tmp_path / "ca.pem").write_text("nothing", encoding="ascii")
    done = cert(tmp_path, "box")
    assert done.returncode == 1 and "one of ca.pem and ca.key without the other" in done.stderr
    (tmp_path / "ca.key").write_text("nothing", encoding="ascii")
    done = cert(tmp_path, "box")
    assert done.returncode == 1 and done.stderr.startswith("teletensor cert: openssl: ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca.key", "ca.pem"]
    monkeypatch.setenv("PATH", "/nowhere")
    done = cert(tmp_path / "other", "box")
    assert done.returncode == 1 and "openssl program is not on PATH" in done.stderr
