"""HTTP requests to a daemon, and Prometheus' text format."""

import http.client
import json


class Reply:
    def __init__(self, response):
        self.status, self.headers = response.status, dict(response.getheaders())
        self.text = response.read().decode()

    @property
    def json(self):
        return json.loads(self.text)


def ask(address, path, method="GET", body=None, token=None, headers=None):
    """Sends one request; never raises an exception for a status."""
    connection = http.client.HTTPConnection(address, timeout=60)
    try:
        given = dict(headers or {})
        if token:
            given["Authorization"] = f"Bearer {token}"
        if body is not None:
            given.setdefault("Content-Type", "application/json")
            body = json.dumps(body)
        connection.request(method, path, body, given)
        return Reply(connection.getresponse())
    finally:
        connection.close()


def scrape(daemon):
    """The page of metrics, as a monitor gets it."""
    reply = ask(daemon.http, "/metrics", token=daemon.monitor)
    assert reply.status == 200, reply.text
    return reply.text


def samples(text):
    """The samples on a page of metrics: {(name, ((label, value), ...)): number}; refuses malformed text."""
    found = {}
    for line in text.splitlines():
        if line.startswith("# "):
            assert line.split()[1] in ("HELP", "TYPE"), line
            continue
        head, value = line.rsplit(" ", 1)
        name, _, rest = head.partition("{")
        labels = ()
        if rest:
            assert rest.endswith("}"), line
            pairs = [p for p in rest[:-1].split('",') if p]
            labels = tuple(sorted((p.split('="')[0], p.split('="')[1].rstrip('"')) for p in pairs))
        assert (name, labels) not in found, f"twice: {line}"
        found[name, labels] = float(value)
    return found
