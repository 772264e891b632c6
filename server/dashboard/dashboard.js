"use strict";
// Reads /api/state once a second and shows it. Everything that comes from outside goes through
// textContent; the token stays in this tab's sessionStorage and travels in a header.

const PERIOD_MS = 1000;
const POINTS = 600;
const COLORS = ["#3366cc", "#e07b39", "#2e9e6b", "#a855b5", "#c0392b", "#0f8b8d", "#8a6d3b", "#5c6bc0"];

const byId = (id) => document.getElementById(id);
const previous = new Map();  // session id or name of a GPU -> {total, at}
const buttons = new Map();  // session id -> cell
const timeline = [];  // {at, memory: {user: MiB}, lanes: {user: n}, queue: n}
const charts = {};
let ended = new Map();  // lanes of this round by session id

function fromFragment() {
  const found = /^#token=(tt_[0-9a-f]+)$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem("token", found[1]);
  window.history.replaceState(null, "", location.pathname);
}

async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = "Bearer " + token;
  const options = { headers, cache: "no-store" };
  if (body) {
    headers["Content-Type"] = "application/json";
    options.method = "POST";
    options.body = JSON.stringify(body);
  }
  return fetch(path, options);
}

function bytes(count) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (count < 1024) return (unit === "B" ? count : count.toFixed(1)) + " " + unit;
    count /= 1024;
  }
  return count.toFixed(1) + " TiB";
}

function seconds(value) {
  if (value < 120) return value.toFixed(value < 10 ? 1 : 0) + " s";
  if (value < 7200) return (value / 60).toFixed(0) + " min";
  return (value / 3600).toFixed(1) + " h";
}

function element(tag, text, name) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (name) made.className = name;
  return made;
}

function fill(table, rows) {
  byId(table).tBodies[0].replaceChildren(...rows.map((cells) => {
    const row = element("tr");
    for (const cell of cells) {
      row.append(cell instanceof Node ? cell : element("td", cell));
    }
    return row;
  }));
}

// How fast the seconds of a session or a GPU have grown since they were last asked for.
function rate(name, total, at) {
  const before = previous.get(name);
  previous.set(name, { total, at });
  if (!before || at <= before.at) return 0;
  return Math.max(0, (total - before.total) / (at - before.at));
}

function lanesOf(session, at) {
  return rate(session.id, session.lane_seconds, at);
}

function usersOf(state) {
  const users = new Map();
  for (const s of state.sessions) {
    const user = users.get(s.user) ||
      { sessions: 0, used: 0, lane: 0, lanes: 0, queued: 0 };
    user.sessions += 1;
    user.used += s.used;
    user.lane += s.lane_seconds;
    user.lanes += ended.get(s.id);
    user.queued += s.queued;
    users.set(s.user, user);
  }
  return users;
}

// The same cell as long as the session lives, so that a click is not lost between two rounds.
function actions(session, may) {
  if (buttons.has(session.id)) return buttons.get(session.id);
  const cell = element("td");
  buttons.set(session.id, cell);
  if (!may) return cell;
  for (const [name, path, style] of [["Interrupt", "/api/interrupt", ""], ["Kill", "/api/kill", "danger"]]) {
    const button = element("button", name, style);
    button.addEventListener("click", async () => {
      if (path === "/api/kill" && !window.confirm("End session " + session.id + "?")) return;
      await ask(path, { session: session.id, reason: "from the dashboard" });
      update();
    });
    cell.append(button);
  }
  return cell;
}

function legend(name, labels) {
  byId(name + "-legend").replaceChildren(...labels.map((label, i) => {
    const item = element("li");
    const mark = element("i");
    mark.style.backgroundColor = COLORS[i % COLORS.length];
    item.append(mark, label);
    return item;
  }));
}

function draw(name, labels, values) {
  const data = {
    labels: timeline.map((point) => new Date(point.at * 1000).toLocaleTimeString()),
    datasets: labels.map((label, i) => ({
      label, data: timeline.map((point) => values(point)[i]),
      borderColor: COLORS[i % COLORS.length], backgroundColor: COLORS[i % COLORS.length] + "33",
      borderWidth: 1.5, pointRadius: 0, fill: true, tension: 0,
    })),
  };
  legend(name, labels);
  if (charts[name]) {
    charts[name].data = data;
    charts[name].update("none");
    return;
  }
  charts[name] = new Chart(byId(name + "-chart"), {
    type: "line", data,
    options: {
      animation: false, maintainAspectRatio: false, plugins: { legend: { display: false } },
      scales: {
        x: { ticks: { maxTicksLimit: 5, maxRotation: 0 }, grid: { display: false } },
        y: { beginAtZero: true, suggestedMax: 1 },
      },
    },
  });
}

function remember(state, users) {
  const point = { at: state.now, memory: {}, lanes: {}, queue: 0 };
  for (const [name, user] of users) {
    point.memory[name] = user.used / 1048576;
    point.lanes[name] = user.lanes;
    point.queue += user.queued;
  }
  if (state.others) point.memory["(others)"] = state.others.used / 1048576;
  timeline.push(point);
  if (timeline.length > POINTS) timeline.shift();
}

function show(state) {
  byId("login").hidden = true;
  byId("main").hidden = false;
  byId("version").textContent = state.version;
  byId("ready").textContent = state.ready ? "ready" : "not ready";
  byId("ready").classList.toggle("good", state.ready);
  byId("caller").textContent = state.caller.user + " (" + state.caller.role + "), up " + seconds(state.uptime);
  byId("devices").replaceChildren(...state.devices.map((d) => {
    const card = element("div", undefined, "card");
    const bar = element("progress");
    bar.max = d.total;
    bar.value = d.used;
    card.append(element("strong", d.device), element("div", bytes(d.used) + " of " + bytes(d.total)), bar);
    const gpu = state.gpus.find((g) => g.device === d.device);
    if (gpu) {
      card.append(element("div", "busy " + rate(d.device, gpu.busy_seconds, state.now).toFixed(2) + ", "
        + gpu.in_flight + " batches in flight, " + gpu.on_host + " instructions on the host so far"
        + (d.away ? ", " + bytes(d.away) + " moved away" : ""), "gpu"));
    }
    if (d.disk_total) {
      card.append(element("div", bytes(d.away) + " on disk, in files of " + bytes(d.disk_used) + " of "
        + bytes(d.disk_total), "disk"));
    }
    return card;
  }));
  ended = new Map(state.sessions.map((s) => [s.id, lanesOf(s, state.now)]));
  const users = usersOf(state);
  fill("users", [...users].map(([name, u]) =>
    [name, u.sessions, bytes(u.used), seconds(u.lane), u.lanes.toFixed(2), u.queued]));
  fill("sessions", state.sessions.map((s) =>
    [s.id, s.user, s.name, seconds(s.age),
      bytes(s.used) + (s.away ? " + " + bytes(s.away) + " on disk" : ""), bytes(s.quota), s.handles,
      seconds(s.lane_seconds), ended.get(s.id).toFixed(2), s.queued,
      actions(s, state.caller.role === "admin" || s.user === state.caller.user)]));
  byId("others").textContent = state.others
    ? "and " + state.others.sessions + " sessions of others, which use " + bytes(state.others.used) : "";
  fill("tensors", state.sessions.flatMap((s) => s.tensors.map((t) => ({ ...t, session: s })))
    .sort((a, b) => b.bytes - a.bytes).slice(0, 20).map((t) =>
      [bytes(t.bytes), t.away ? (t.device === "cpu" ? "disk" : t.device + ", moved away") : t.device, t.session.user, t.session.id + " " + t.session.name,
        element("td", t.site || "command " + t.command, "site")]));
  fill("published", state.published.map((p) =>
    [p.name, bytes(p.bytes), p.device, p.writable ? "write" : "read", p.users || "own sessions"]));
  fill("slow", state.slow.map((e) =>
    [seconds(e.age), (e.seconds * 1000).toFixed(0) + " ms", e.op, e.user, e.session + " " + e.name,
      element("td", e.site || "command " + e.command, "site")]));
  remember(state, users);
  const names = [...new Set(timeline.flatMap((p) => Object.keys(p.memory)))].sort();
  if (names.length === 0) names.push("nobody");
  draw("memory", names, (p) => names.map((n) => p.memory[n] || 0));
  draw("lanes", names, (p) => names.map((n) => p.lanes[n] || 0));
  draw("queue", ["queued"], (p) => [p.queue]);
}

async function update() {
  try {
    const reply = await ask("/api/state");
    if (reply.status === 401 || reply.status === 403) {
      byId("main").hidden = true;
      byId("login").hidden = false;
      byId("refused").textContent = sessionStorage.getItem("token") ? (await reply.text()).trim() : "";
    } else if (reply.ok) {
      show(await reply.json());
    }
  } catch (error) {
    byId("ready").textContent = "no answer";
    byId("ready").classList.remove("good");
  }
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  update();
});
fromFragment();
update();
window.setInterval(update, PERIOD_MS);
