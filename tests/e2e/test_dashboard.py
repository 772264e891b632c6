"""The dashboard in a real Chromium: it shows the right numbers while three clients run."""

import contextlib
import getpass
import re

import pytest
from support.browser import sign_in
from support.clients import client, finish, wait_line
from support.daemon import ROOT
from support.http import ask

MIB = 1 << 20
HOLD = """
    kept = tt.ones({mib} * (1 << 18))
    a = tt.ones(600, 600)
    s.synchronize()
    print("holding", s.id, flush=True)
    try:
        while True:
            (a @ a).sum().item()
            time.sleep(0.02)
    except tt.SessionLostError as e:
        print("lost:", e, flush=True)
"""


def test_a_person_sees_who_holds_what(admin, browser, tt):
    daemon, token = admin
    running = [client(HOLD.format(mib=mib), daemon.unix) for mib in (8, 16)]
    stack = contextlib.ExitStack()
    try:
        own = stack.enter_context(tt.connect(daemon.unix, name="<b>third</b>"))
        ids = [int(wait_line(process, "holding").split()[1]) for process in running]
        kept = tt.ones(MIB)
        big = tt.ones(5000, 5000)  # ten times 50 ms on two fast cores
        (big @ big).sum().item()
        del big
        sign_in(browser, daemon, token)
        browser.wait(lambda: len(browser.rows("sessions")) == 3, what=f"three sessions, but {browser.rows('sessions')}")
        # The dashboard gets the source lines from the clients' reports.
        browser.wait(lambda: sum("in <module>" in row["Made by"] or "test_dashboard.py" in row["Made by"]
                                 for row in browser.rows("tensors")) >= 3, what="the lines")
        browser.wait(lambda: float(browser.rows("users")[0]["Lanes now"]) > 0, what="lanes in use")
        sessions = {int(row["Session"].split()[0]): row for row in browser.rows("sessions")}
        user = getpass.getuser()
        assert set(sessions) == {*ids, own.id} and {row["User"] for row in sessions.values()} == {user}
        for number, least in ((ids[0], 8), (ids[1], 16), (own.id, 4)):
            size, unit = sessions[number]["Memory"].split()
            assert unit == "MiB" and least <= float(size) <= least + 8
        assert sessions[own.id]["Session"] == f"{own.id} <b>third</b>"  # text, not markup
        assert sessions[own.id]["Client"] == "attached"
        assert browser.rows("users")[0]["User"] == user
        largest = browser.rows("tensors")[0]
        assert (largest["Bytes"], largest["Shape"], largest["Dtype"]) == ("16.0 MiB", f"[{16 << 18}]", "float32")
        assert not any("command" in row["Made by"] for row in browser.rows("tensors"))
        browser.wait(lambda: any(row["Op"] == "matmul" for row in browser.rows("slow")), what="the slow product")
        assert browser.text("#ready") == "ready" and "root (admin)" in browser.text("#caller")
        browser.wait(lambda: user in browser.text("#memory-legend"), what="the history")
        assert browser.script("return document.querySelectorAll('.charts canvas').length") == 3
        assert browser.script("return sessionStorage.getItem('token')") == token
        assert token not in browser.script("return document.documentElement.outerHTML")
        # The page's button "Kill" ends the session.
        browser.click(f"#sessions tr[data-key='{ids[0]}'] button.danger")
        assert f"End session {ids[0]}, " in browser.question() and f" of {user}?" in browser.question()
        browser.accept()
        status, out, _ = finish(running[0])
        assert status == 0 and "ended by root: from the dashboard" in out
        browser.wait(lambda: len(browser.rows("sessions")) == 2, what="two sessions")
        refusals = [entry for entry in browser.log() if "Content Security" in entry["message"] or
                    entry["level"] == "SEVERE" and "401" not in entry["message"] and
                    "favicon" not in entry["message"]]
        assert not refusals
        del kept
    finally:
        stack.close()
        for process in running:
            process.kill()
            process.communicate()


def test_api_tells_by_right(admin, new_token, tt):
    daemon, token = admin
    with tt.connect(daemon.unix, name="private") as s:
        kept = tt.ones(MIB)
        s.synchronize()
        assert ask(daemon.http, "/api/state").status == 401
        state = ask(daemon.http, "/api/state", token=token).json
        assert [x["name"] for x in state["sessions"]] == ["private"] and "others" not in state
        bob = new_token(daemon, "bob")
        state = ask(daemon.http, "/api/state", token=bob).json
        assert state["sessions"] == [] and state["others"]["sessions"] == 1
        assert state["others"]["used"] >= 4 * MIB and "private" not in str(state)
        assert ask(daemon.http, f"/api/session?id={s.id}", token=token).json["name"] == "private"
        assert ask(daemon.http, f"/api/session?id={s.id}", token=bob).status == 404
        assert ask(daemon.http, f"/api/session?id={s.id}").status == 401
        for query in ("", "?id=", "?id=-1", "?id=1x", f"?id={1 << 65}"):
            assert ask(daemon.http, f"/api/session{query}", token=token).status == 400
        kill = {"session": s.id, "reason": "x"}
        assert ask(daemon.http, "/api/kill", "POST", kill).status == 401
        assert ask(daemon.http, "/api/kill", "POST", kill, token=bob).status == 404
        assert ask(daemon.http, "/api/interrupt", "POST", kill, token=bob).status == 404
        evil = {"Origin": "http://evil.example"}
        assert ask(daemon.http, "/api/kill", "POST", kill, token=token, headers=evil).status == 403
        plain = {"Content-Type": "text/plain"}
        assert ask(daemon.http, "/api/kill", "POST", kill, token=token, headers=plain).status == 400
        for body in ({}, [], {"session": -1}, {"session": "1"}, {"session": 1.5}):
            assert ask(daemon.http, "/api/kill", "POST", body, token=token).status == 400
        assert kept.sum().item() == MIB
        same = {"Origin": f"http://{daemon.http}"}
        assert ask(daemon.http, "/api/kill", "POST", kill, token=token, headers=same).status == 200
        with pytest.raises(tt.SessionLostError):
            kept.sum().item()
            s.synchronize()


def test_the_page_holds_nothing_inline(start_daemon):
    """Scripts and styles come from the daemon's own files, as the security policy requires."""
    daemon = start_daemon()
    page = ask(daemon.http, "/").text
    assert "<style" not in page and " style=" not in page and " on" not in page.replace(" one", "")
    assert page.count("<script") == page.count("<script src=\"/") == 2
    ours = [f"/{path.name}" for path in (ROOT / "server/dashboard").iterdir() if path.suffix in (".js", ".css")]
    assert len(ours) == 6
    for path in (*ours, "/chart.js"):
        reply = ask(daemon.http, path)
        assert reply.status == 200 and len(reply.text) > 500 and "nosniff" in str(reply.headers)
        if path != "/chart.js":
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", reply.text), path


BUSY = """
    from support.busy import occupy
    a = tt.ones(1500, 1500)
    s.synchronize()
    print("queueing", s.id, flush=True)
    b = occupy(tt)
    for _ in range(3000):
        a = (a @ a) * 1e-4
    try:
        a.sum().item()
    except tt.InterruptedOpError as e:
        print("interrupted", tt.ones(3).sum().item(), flush=True)
"""


def test_the_address_on_stdout_signs_in(start_daemon, browser):
    """The token is not in the address bar after the page has opened."""
    daemon = start_daemon()
    browser.go(daemon.url)
    browser.wait(lambda: browser.script("return !document.getElementById('overview').hidden"))
    assert browser.script("return document.getElementById('login').hidden")
    assert browser.script("return location.href") == f"http://{daemon.http}/"


def test_queues_are_drawn_live_and_an_admin_interrupts(admin, browser):
    daemon, token = admin
    sign_in(browser, daemon, token)
    busy = client(BUSY, daemon.unix)
    try:
        number = wait_line(busy, "queueing").split()[1]

        def row(table):
            return browser.rows(table)[0]
        browser.wait(lambda: browser.rows("sessions") and int(row("sessions")["Queued"]) > 0, what="a queue")
        assert row("sessions")["Session"].split()[0] == number and int(row("users")["Queued"]) > 0

        def drawn(chart):
            return browser.script(f"const set = Chart.getChart('{chart}-chart')?.data.datasets[0];"
                                  "return set ? set.data.map(point => point.y) : [];")
        browser.wait(lambda: max(drawn("queue"), default=0) > 0, what="the queue's chart")
        browser.wait(lambda: max(drawn("lanes"), default=0) > 0, what="the lanes' chart")
        assert max(drawn("memory")) >= 8
        points = len(drawn("queue"))
        browser.wait(lambda: len(drawn("queue")) > points, what="the charts go on")
        browser.click("#sessions tbody tr:nth-child(1) button:not(.danger)")
        status, out, err = finish(busy)
        assert status == 0 and "interrupted 3.0" in out, err
        browser.wait(lambda: browser.rows("sessions") == [], what="its session is gone")
        browser.wait(lambda: drawn("queue")[-1] == 0, what="the queue is empty")
    finally:
        busy.kill()
        busy.communicate()


def test_who_is_no_admin_sees_sums_and_no_buttons(admin, new_token, browser, tt):
    daemon, _ = admin
    bob = new_token(daemon, "bob")
    with tt.connect(daemon.unix, name="private") as theirs, tt.connect(daemon.tcp, token=bob,
                                                                       name="bobs"):
        with theirs:
            kept = tt.ones(MIB)
            theirs.synchronize()
        own = tt.ones(8)
        own.sum().item()
        sign_in(browser, daemon, bob)
        browser.wait(lambda: ["bobs" in row["Session"] for row in browser.rows("sessions")] == [True],
                     what="bob's session")
        assert "and 1 session of others, which uses " in browser.text("#others")
        assert "bob (user)" in browser.text("#caller")
        assert "private" not in browser.script("return document.body.textContent")
        assert browser.script("return document.querySelectorAll('#sessions button').length") == 2  # of bob's own
        del kept
