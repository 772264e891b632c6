"""The dashboard's pages in a real Chromium: quotas, a session's own page, empty tables, history, phones, dark
mode; axe-core finds nothing on any of them."""

import contextlib

import pytest
from support.browser import sign_in
from support.daemon import wait_until
from support.daemons import peer_flags
from support.http import ask

MIB = 1 << 20
MARKUP = "<b>notebook</b>" + 8 * "-long"
PHONE = {"width": 390, "height": 844, "scale": 2}
QUOTAS = """
user_memory = "256MiB"

[users.alice]
memory = "64MiB"
sessions = 4
weight = 2.0
"""


@pytest.fixture
def house(start_daemon, new_token, tmp_path, tt):
    """Returns (daemon, token of an admin, alice's session, bob's session); both have tensors, and alice's
    has an error."""
    (tmp_path / "daemon.toml").write_text(QUOTAS, encoding="utf-8")
    daemon = start_daemon("--slow-ms", "50", "--lanes", "2", "--config",
                          str(tmp_path / "daemon.toml"))
    root = new_token(daemon, "root", "admin")
    with contextlib.ExitStack() as stack:
        sessions = {user: stack.enter_context(tt.connect(daemon.tcp, token=new_token(daemon, user), name=name))
                    for user, name in (("alice", "resnet"), ("bob", MARKUP))}
        kept = []
        with sessions["alice"]:
            kept += [tt.zeros(1024, 2048), tt.zeros(100, 3, dtype=tt.int64)]
            with pytest.raises(tt.OutOfMemoryError):
                tt.ones(64 * MIB).sum().item()
            tt.publish("weights", kept[0])
        with sessions["bob"]:
            kept.append(tt.ones(MIB))
            sessions["bob"].synchronize()
        yield daemon, root, sessions["alice"], sessions["bob"]
        del kept


def faults(browser):
    """The findings of axe-core in light mode, in dark mode, and on a phone, where the page must not scroll
    sideways."""
    found = []
    for screen in ({}, {"dark": True}, PHONE):
        browser.emulate(**screen)
        found += browser.faults()
        assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.emulate()
    return found


def test_axe_finds_nothing_at_the_login_and_on_empty_tables(admin, browser):
    daemon, token = admin
    browser.go(f"http://{daemon.http}/")
    browser.wait(lambda: browser.script("return !document.getElementById('login').hidden"))
    assert not browser.script("return document.getElementById('ready').checkVisibility()")  # no empty badge
    for command in ("teletensord --create-token", "teletensor token create"):
        assert command in browser.text("#login")
    assert faults(browser) == []
    browser.type("#token", "tt_wrong")
    browser.click("#login button")
    browser.wait(lambda: browser.text("#refused") != "", what="the refusal")
    assert browser.faults() == []
    sign_in(browser, daemon, token)
    shown = browser.text("#overview")
    for text in ("tt.distributed.init_process_group()",
                 "tt.publish(\"name\", tensor)", "tt.connect(", "tt.ones(", "No instruction has held a lane for more "
                 "than 50 ms (--slow-ms)"):
        assert text in shown
    assert browser.script("return [...document.querySelectorAll('#overview table')].every(t => !t.checkVisibility())")
    assert faults(browser) == []


def test_axe_finds_nothing_on_full_pages_and_kill_is_reached_by_phone(house, browser):
    daemon, token, alice, bob = house
    sign_in(browser, daemon, token)
    browser.wait(lambda: len(browser.rows("sessions")) == 2 and browser.text("#memory-legend"), what="the overview")
    assert faults(browser) == []
    for width in (320, 800, 1200, 1280):
        browser.emulate(width=width)
        assert browser.script("return document.documentElement.scrollWidth <= window.innerWidth")
    browser.emulate()
    light = browser.script("return getComputedStyle(document.body).backgroundColor")
    browser.emulate(dark=True)
    assert browser.script("return getComputedStyle(document.body).backgroundColor") != light
    browser.click(f"#sessions tr[data-key='{alice.id}'] a")
    browser.wait(lambda: len(browser.rows("session-errors")) > 0, what="the session's page")
    assert faults(browser) == []
    browser.script("window.history.back()")
    browser.wait(lambda: browser.script("return document.getElementById('overview').checkVisibility()"), what="back")
    browser.emulate(**PHONE)
    browser.click(f"#sessions tr[data-key='{bob.id}'] button.danger")
    assert browser.question() == f"End session {bob.id}, “{MARKUP}”, of bob? Its tensors are lost."
    browser.accept()
    browser.wait(lambda: len(browser.rows("sessions")) == 1, what="one session")
    assert browser.script("return document.querySelector('#overview b') === null")  # names are no markup


def test_bars_show_a_users_own_quotas(house, browser):
    daemon, token, *_ = house
    sign_in(browser, daemon, token)
    browser.wait(lambda: len(browser.rows("users")) == 2, what="the users")
    alice, bob = browser.rows("users")
    assert alice["User"] == "alice" and alice["Memory, of the quota"].endswith(" of 64.0 MiB")
    assert alice["Sessions, of the quota"] == "1 of 4" and alice["Share of lanes"] == "2.0"
    assert bob["User"] == "bob" and bob["Memory, of the quota"].endswith(" of 256.0 MiB")
    assert bob["Sessions, of the quota"] == "1, no quota"
    part = browser.script("const bar = document.querySelector(\"#users tr[data-key='alice'] progress\");"
                          "return [bar.value, bar.max]")
    assert 8 * MIB < part[0] < 12 * MIB and part[1] == 64 * MIB
    row = browser.rows("published")[0]
    assert (row["Name"], row["Shape"], row["Dtype"]) == ("alice/weights", "[1024, 2048]", "float32")
    right = browser.script("const cell = document.querySelector('#tensors td.number');"
                           "return [getComputedStyle(cell).textAlign, getComputedStyle(cell).fontVariantNumeric]")
    assert right == ["right", "tabular-nums"]


def test_groups_show_who_is_waited_for(house, browser, tt):
    daemon, token, alice, _ = house
    with alice:
        alice._core.join(1, "world test", 0, 2, 60_000)
        tt._core.ops["all_reduce"](tt.ones(3), 1, False, "train.py:1")
        tt.ones(2).prod().item()  # the commands before it have reached the daemon
    sign_in(browser, daemon, token)
    browser.wait(lambda: [row for row in browser.rows("groups") if "waits" in row["Ranks that have joined"]],
                 what="a rank that waits")
    row, = browser.rows("groups")
    assert (row["Group"], row["User"], row["State"]) == ("world test", "alice", "running")
    assert (row["Ranks"], row["Collectives"]) == ("1 of 2", "1")
    assert row["Ranks that have joined"] == 'rank 0: session "resnet", waits for other ranks'
    assert faults(browser) == []
    alice.cancel()  # the end of a session waits for its collectives


def test_administrators_see_other_daemons_and_stores(start_daemon, new_token, browser):
    daemon = start_daemon(*peer_flags("a", "b=127.0.0.1:1"))
    root, user = new_token(daemon, "root", "admin"), new_token(daemon, "ann")
    sign_in(browser, daemon, root)
    browser.wait(lambda: browser.rows("peers"), what="the other daemons")
    row, = browser.rows("peers")
    assert (row["Daemon"], row["State"], row["Connections"], row["Given up"]) == ("b", "not connected", "0", "0")
    assert browser.script("return document.getElementById('stores').textContent") == "0 stores, 0 B, 0 waiting calls"
    assert faults(browser) == []
    state = ask(daemon.http, "/api/state", token=user).json
    assert "peers" not in state and "stores" not in state


def test_a_session_has_a_page(house, browser, tt):
    daemon, token, alice, _ = house
    with alice:
        tt.linalg.svdvals(tt.randn(900, 900)).sum().item()  # more than 50 ms on any machine
    sign_in(browser, daemon, token)
    browser.go(f"http://{daemon.http}/#session={alice.id}")
    browser.wait(lambda: browser.script("return document.getElementById('session-page').checkVisibility()"))
    browser.wait(lambda: len(browser.rows("session-slow")) > 0, what="a slow instruction")
    facts = dict(browser.script("return [...document.querySelectorAll('#session-facts dt')]"
                                ".map(dt => [dt.textContent, dt.nextElementSibling.textContent])"))
    assert facts["User"] == "alice" and facts["State"] == "attached" and facts["Queue"] == "empty"
    assert "pid " in facts["Client"] and "127.0.0.1" in facts["Address"]
    assert browser.text("#session-title") == f"Session {alice.id} resnet"
    limits = {row["What"]: row["Used"] for row in browser.rows("session-limits")}
    assert limits["Memory of alice on cpu, all sessions"].endswith(" of 64.0 MiB")
    assert limits["Names that tensors are published under"] == "1 of 10000"
    assert any(row["Shape"] == "[100, 3]" and row["Dtype"] == "int64" for row in browser.rows("session-tensors"))
    error = browser.rows("session-errors")[0]
    assert "out of memory" in error["Error"] and error["Told to the program"] == "yes"
    browser.click("#session-actions button.danger")
    assert "resnet" in browser.question() and "alice" in browser.question()
    browser.accept()
    browser.wait(lambda: "has ended" in browser.text("#session-gone"), what="the end of the session")


def test_the_history_tells_by_right_and_what_is_new(house, new_token):
    daemon, token, *_ = house

    def read(of=token, since=0):
        return ask(daemon.http, f"/api/history?since={since}", token=of).json
    wait_until(lambda: len(read()["users"]) == 2 and len(read()["times"]) > 1)
    history = read()
    assert history["period"] == 2 and history["times"] == sorted(history["times"])
    users = {user["name"]: user for user in history["users"]}
    assert set(users) == {"alice", "bob"} and users["alice"]["color"] != users["bob"]["color"]
    assert users["alice"]["memory"][-1] >= 8 * MIB > 4 * MIB <= users["bob"]["memory"][-1]
    assert history["devices"][0]["used"][-1] >= 12 * MIB and "others" not in history
    for column in (history["queued"], users["alice"]["lanes"], history["devices"][0]["used"]):
        assert len(column) == len(history["times"]) == history["next"] - history["first"]
    wait_until(lambda: len(read(since=history["next"])["times"]) > 0)
    assert read(since=history["next"])["first"] == history["next"]
    seen = read(new_token(daemon, "bob"))
    assert [user["name"] for user in seen["users"]] == ["bob"] and seen["others"]["memory"][-1] >= 8 * MIB
    assert seen["users"][0]["color"] == users["bob"]["color"] and "alice" not in str(seen)
    assert ask(daemon.http, "/api/history").status == 401
    assert ask(daemon.http, "/api/history?since=x", token=token).status == 400


def test_charts_show_what_was_before_the_page_came(house, browser):
    daemon, token, *_ = house
    wait_until(lambda: len(ask(daemon.http, "/api/history", token=token).json["times"]) >= 3)
    sign_in(browser, daemon, token)
    browser.wait(lambda: browser.script("return Chart.getChart('memory-chart') !== undefined"), what="the charts")
    chart = ("const chart = Chart.getChart('memory-chart'); const axis = chart.options.scales.x;"
             "return [chart.data.datasets.map(d => d.label), chart.data.datasets[0].data.length, axis.max - axis.min]")
    labels, points, span = browser.script(chart)
    assert labels == ["alice", "bob"] and points >= 3 and span == 300_000
    assert " of 2" in browser.text("#lanes-title")
    browser.click("#range-3600")
    assert browser.script(chart)[2] == 3_600_000
    assert browser.script("return document.getElementById('range-3600').ariaPressed") == "true"
    ticks = browser.script("return Chart.getChart('memory-chart').scales.x.ticks.map(t => [t.value, t.label])")
    assert len(ticks) in (6, 7) and all(value % 600_000 == 0 and ":" in label for value, label in ticks)
    # The user has the same colour in the table and in the chart, in every browser.
    marks = browser.script("return ['#users tr[data-key=\"alice\"] .mark', '#memory-legend .mark']"
                           ".map(s => getComputedStyle(document.querySelector(s)).backgroundColor)")
    assert marks[0] == marks[1]
