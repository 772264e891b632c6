"""Certificates for a test, made by the openssl program."""

import subprocess
from pathlib import Path


def openssl(*arguments):
    subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True, timeout=60)


class Authority:
    """A certificate authority in a folder: `ca`, and issue(name) -> (certificate, key)."""

    def __init__(self, folder, name="test authority"):
        self.folder = Path(folder)
        self.folder.mkdir(exist_ok=True)
        self.ca, self._key = self.folder / "ca.pem", self.folder / "ca.key"
        openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", 2,
                "-subj", f"/CN={name}", "-addext", "basicConstraints=critical,CA:TRUE",
                "-keyout", self._key, "-out", self.ca)

    def issue(self, name, days=2):
        certificate, key = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        request, extra = self.folder / f"{name}.csr", self.folder / f"{name}.ext"
        extra.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n", encoding="ascii")
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
                "-keyout", key, "-out", request)
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key, "-CAcreateserial",
                "-days", days, "-extfile", extra, "-out", certificate)
        key.chmod(0o600)
        return certificate, key
