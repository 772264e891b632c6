"""TLS while the daemon runs: renewed certificates, other authorities, bad files, names that are users."""

import http.client
import json
import os
import shutil
import ssl
import subprocess
import sys

import pytest
from support.daemon import binary, wait_until
from support.tls import Authority


class Files:
    """The certificate files of a daemon, and their renewal."""

    def __init__(self, folder, authority, client_ca=None):
        folder.mkdir()
        self.certificate, self.key, self.client_ca = (folder / n for n in ("server.pem", "server.key", "ca.pem"))
        self.flags = ["--tls-cert", str(self.certificate), "--tls-key", str(self.key)]
        self.renew(*authority.issue("server"))
        if client_ca:
            shutil.copy(client_ca, self.client_ca)
            self.flags += ["--tls-client-ca", str(self.client_ca)]

    def renew(self, certificate, key):
        """Replaces the files as certbot does: one file after the other, each at once."""
        for new, path in ((certificate, self.certificate), (key, self.key)):
            beside = path.with_suffix(".new")
            shutil.copy(new, beside)
            beside.chmod(0o600)
            os.replace(beside, path)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def successor(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("ca2"), "the next authority")


def token_of(daemon, user):
    made = subprocess.run([binary(), "--state-dir", f"{daemon.folder}/state", "--create-token", f"{user}:user"],
                          capture_output=True, text=True, timeout=120)
    return made.stdout.strip()


def test_a_renewed_certificate_is_used_without_a_restart(start_daemon, tt, authority, successor, tmp_path):
    files = Files(tmp_path / "tls", authority)
    daemon = start_daemon(*files.flags)
    address, token = "tls://" + daemon.tcp, token_of(daemon, "alice")
    with tt.connect(address, token=token, ca=authority.ca) as before:
        kept = tt.ones(4)
        files.renew(*successor.issue("server"))
        with tt.connect(address, token=token, ca=successor.ca):
            assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        with pytest.raises(tt.SessionLostError):
            tt.connect(address, token=token, ca=authority.ca)
        with before:  # existing connections continue
            assert kept.sum().item() == 4.0
    assert "event=certificates_taken version=2" in daemon.log


def test_bad_files_leave_the_good_ones_in_force(start_daemon, tt, authority, successor, tmp_path):
    files = Files(tmp_path / "tls", authority)
    daemon = start_daemon(*files.flags)
    address, token = "tls://" + daemon.tcp, token_of(daemon, "alice")
    refused = 0
    certificate, key = authority.issue("other")
    for spoil, reason in (
            (lambda: files.certificate.write_text("nonsense", encoding="ascii"), "no certificate in"),
            (lambda: shutil.copy(certificate, files.certificate), "is not the key of"),
            (lambda: files.key.write_text("", encoding="ascii"), "no key without a passphrase"),
            (lambda: files.key.chmod(0o644), "can be opened by others"),
            (lambda: files.key.unlink(), "cannot read")):
        spoil()
        for _ in range(2):
            with tt.connect(address, token=token, ca=authority.ca):
                assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        refused += 1
        assert reason in daemon.lines[[i for i, line in enumerate(daemon.lines) if "certificates_refused" in line][-1]]
        assert daemon.log.count("event=certificates_refused") == refused  # once each, not at every connection
    files.renew(certificate, key)
    with tt.connect(address, token=token, ca=authority.ca):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    assert "event=certificates_taken" in daemon.log


def test_another_client_authority_is_used_without_a_restart(start_daemon, tt, authority, successor, tmp_path):
    files = Files(tmp_path / "tls", authority, client_ca=authority.ca)
    daemon = start_daemon(*files.flags)
    address, token = "tls://" + daemon.tcp, token_of(daemon, "alice")
    old, new = authority.issue("alice"), successor.issue("alice")
    with tt.connect(address, token=token, ca=authority.ca, cert=old):
        pass
    with pytest.raises(tt.SessionLostError):
        tt.connect(address, token=token, ca=authority.ca, cert=new)
    shutil.copy(successor.ca, files.client_ca)
    with tt.connect(address, token=token, ca=authority.ca, cert=new):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
    with pytest.raises(tt.SessionLostError):
        tt.connect(address, token=token, ca=authority.ca, cert=old)


def ask(address, context, token=None):
    """The status of /metrics."""
    connection = http.client.HTTPSConnection("127.0.0.1", int(address.rsplit(":", 1)[1]), timeout=60, context=context)
    connection.request("GET", "/metrics", headers={"Authorization": f"Bearer {token}"} if token else {})
    status = connection.getresponse().status
    connection.close()
    return status


def test_http_takes_renewed_certificates_as_well(start_daemon, authority, successor, tmp_path):
    files = Files(tmp_path / "tls", authority, client_ca=authority.ca)
    # This spelling of the loopback address does not count as loopback, so HTTP uses TLS there.
    daemon = start_daemon(*files.flags, "--tls-users", "--http", "127.1:0")
    contexts = []
    for ca in (authority, successor):
        contexts.append(ssl.create_default_context(cafile=str(ca.ca)))
        contexts[-1].load_cert_chain(*map(str, authority.issue("alice")))
    alone = ssl.create_default_context(cafile=str(authority.ca))
    token = token_of(daemon, "bob")
    assert ask(daemon.http, contexts[0], token) == 200
    assert ask(daemon.http, contexts[0]) == 200  # by the certificate's name
    assert ask(daemon.http, contexts[0], "tt_" + "0" * 64) == 401
    with pytest.raises(OSError):  # the handshake fails
        ask(daemon.http, alone, token)
    with pytest.raises(ssl.SSLError):
        ask(daemon.http, contexts[1])
    files.renew(*successor.issue("server"))
    assert ask(daemon.http, contexts[1]) == 200
    with pytest.raises(ssl.SSLError):
        ask(daemon.http, contexts[0])


def test_names_of_certificates_are_users(start_daemon, tt, authority, tmp_path):
    files = Files(tmp_path / "tls", authority, client_ca=authority.ca)
    daemon = start_daemon(*files.flags, "--tls-users")
    address = "tls://" + daemon.tcp

    def owners():
        done = subprocess.run([sys.executable, "-m", "teletensor.cli", "sessions", "--json", "--address", daemon.unix],
                              capture_output=True, text=True, timeout=60)
        return [s["user"] for s in json.loads(done.stdout)]
    with tt.connect(address, ca=authority.ca, cert=authority.issue("alice")):
        assert (tt.ones(2) * 1).tolist() == [1.0, 1.0]
        assert owners() == ["alice"]
    wait_until(lambda: owners() == [], what="the session is gone")
    # A token takes precedence over a certificate; an invalid token is refused.
    with tt.connect(address, token=token_of(daemon, "bob"), ca=authority.ca, cert=authority.issue("alice")):
        assert owners() == ["bob"]
    with pytest.raises(tt.RefusedError, match="token"):
        tt.connect(address, token="tt_" + "0" * 64, ca=authority.ca, cert=authority.issue("alice"))
    for name in ("anonymous", "a b", "x" * 60 + "!"):
        with pytest.raises(tt.RefusedError, match="common name"):
            tt.connect(address, ca=authority.ca, cert=authority.issue(name))


def test_names_of_certificates_need_an_authority(authority, tmp_path):
    files = Files(tmp_path / "tls", authority)
    done = subprocess.run([binary(), "--no-socket", "--state-dir", str(tmp_path / "state"), "--listen", "127.0.0.1:0",
                           *files.flags, "--tls-users"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "--tls-client-ca" in done.stderr
