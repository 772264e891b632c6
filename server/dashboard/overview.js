// The overview page: devices, users with their quotas, sessions, tensors, groups and slow
// instructions.

import {
  actions, byId, bytes, client, element, fill, meters, milliseconds, place, plural, rate, seconds,
  sessionLink, setText, shape, userCell,
} from "/page.js";

const TENSORS = 20;

const cards = new Map();  // Device name -> {card, lines, meter, gpu, disk}.

function newCard(device) {
  const card = element("div", undefined, "card");
  const parts = { card, bar: element("div"), gpu: element("div", undefined, "gpu"),
    disk: element("div", undefined, "disk") };
  const chart = element("div", undefined, "chart");
  const canvas = element("canvas");
  canvas.id = "device-" + device + "-chart";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", "Memory in use on " + device);
  chart.append(canvas);
  card.append(element("strong", device), parts.bar, parts.gpu, parts.disk, chart);
  byId("devices").append(card);
  return parts;
}

function showDevice(d, gpu, now) {
  if (!cards.has(d.device)) cards.set(d.device, newCard(d.device));
  const parts = cards.get(d.device);
  const bar = meters([{ label: "Memory of " + d.device, used: d.used, quota: d.total }]);
  if (!parts.bar.firstChild) parts.bar.append(bar.make());
  bar.update(parts.bar.firstChild);
  setText(parts.gpu, !gpu ? "" : "busy " + rate(d.device, gpu.busy_seconds, now).toFixed(2) + ", "
    + plural(gpu.in_flight, "batch", "batches") + " in flight, "
    + plural(gpu.on_host, "instruction") + " on the host so far"
    + (d.away ? ", " + bytes(d.away) + " moved away" : ""));
  setText(parts.disk, !d.disk_total ? "" : bytes(d.away) + " on disk, in files of "
    + bytes(d.disk_used) + " of " + bytes(d.disk_total));
}

// Bars for a user's memory on each device, relative to its quota.
export function memoryMeters(user) {
  const several = user.memory.length > 1;
  return user.memory.filter((m) => m.used > 0 || !several || m.device === "cpu").map((m) => ({
    label: "Memory of " + user.name + " on " + m.device, used: m.used, quota: user.memory_quota }));
}

function diskMeters(user) {
  return user.memory.filter((m) => m.disk_quota > 0).map((m) => ({
    label: "Disk of " + user.name, used: m.disk_used, quota: m.disk_quota }));
}

// The user's files in the state directory, if they are limited.
function stateMeters(user) {
  return user.state_quota === null ? [] : [{ label: "Snapshots of " + user.name,
    used: user.state_used, quota: user.state_quota,
    text: bytes(user.state_used) + " of " + bytes(user.state_quota) + " in snapshots" }];
}

function sessionMeters(user) {
  const quota = user.sessions_quota;
  return [{ label: "Sessions of " + user.name, used: user.sessions, quota,
    text: quota > 0 ? user.sessions + " of " + quota : user.sessions + ", no quota" }];
}

function showUsers(state, lanes) {
  const known = state.users.map((user) => {
    const now = state.sessions.filter((s) => s.user === user.name)
      .reduce((sum, s) => sum + lanes.get(s.id), 0);
    const memory = memoryMeters(user);
    if (memory.length === 0 && user.memory_quota > 0) {
      memory.push({ label: "Memory of " + user.name, used: 0, quota: user.memory_quota });
    }
    return { key: user.name, cells: [userCell(user.name, user.color), meters(memory),
      meters([...diskMeters(user), ...stateMeters(user)]), meters(sessionMeters(user)), user.weight.toFixed(1),
      seconds(user.lane_seconds), now.toFixed(2), user.queued] };
  });
  fill("users", known);
}

// One line for each rank that has joined.
function ranks(group) {
  return {
    make: () => element("ul", undefined, "ranks"),
    update: (made) => {
      const lines = group.members.map((m) => "rank " + m.rank + ": "
        + (m.who || (m.daemon ? "on " + m.daemon : "has left"))
        + (m.waits ? ", waits for other ranks" : ""));
      if (group.joined > lines.length) lines.push("and " + (group.joined - lines.length) + " more");
      while (made.children.length > lines.length) made.lastChild.remove();
      while (made.children.length < lines.length) made.append(element("li"));
      lines.forEach((line, i) => setText(made.children[i], line));
    },
  };
}

function showGroups(groups) {
  fill("groups", groups.map((g) => ({ key: g.user + "/" + g.name, cells: [g.name, g.user,
    g.state + (g.why ? ": " + g.why : ""), g.joined + " of " + g.ranks, g.collectives, g.open,
    ranks(g)] })));
}

// Other daemons and key-value stores, which only administrators see.
function showServices(state) {
  byId("services").hidden = !state.peers;
  if (!state.peers) return;
  fill("peers", state.peers.map((p) => ({ key: p.name, cells: [p.name,
    p.connected ? "connected" : "not connected", p.connections, p.losses, bytes(p.sent),
    bytes(p.received)] })));
  setText(byId("stores"), plural(state.stores.count, "store") + ", " + bytes(state.stores.bytes)
    + ", " + plural(state.stores.waits, "waiting call"));
}

function showSessions(state, lanes) {
  fill("sessions", state.sessions.map((s) => {
    const may = state.caller.role === "admin" || s.user === state.caller.user;
    return { key: s.id, cells: [sessionLink(s.id, s.name), s.user, client(s), seconds(s.age),
      bytes(s.used) + (s.away ? " + " + bytes(s.away) + " on disk" : "")
        + (s.not_saved ? ", not saved" : ""), s.handles,
      seconds(s.lane_seconds), lanes.get(s.id).toFixed(2), s.queued,
      may ? { make: () => actions(s) } : ""] };
  }));
  setText(byId("others"), !state.others ? "" : "and " + plural(state.others.sessions, "session")
    + " of others, which " + (state.others.sessions === 1 ? "uses " : "use ")
    + bytes(state.others.used));
}

export function showOverview(state) {
  for (const d of state.devices) {
    showDevice(d, state.gpus.find((g) => g.device === d.device), state.now);
  }
  const lanes = new Map(state.sessions.map((s) => [s.id, rate(s.id, s.lane_seconds, state.now)]));
  showUsers(state, lanes);
  showSessions(state, lanes);
  fill("tensors", state.sessions.flatMap((s) => s.tensors.map((t) => ({ ...t, session: s })))
    .sort((a, b) => b.bytes - a.bytes).slice(0, TENSORS).map((t, i) => ({ key: i,
      cells: [bytes(t.bytes), shape(t.shape), t.dtype || "", place(t), t.session.user,
        sessionLink(t.session.id, t.session.name), t.site] })));
  fill("published", state.published.map((p) => ({ key: p.name,
    cells: [p.name, bytes(p.bytes), shape(p.shape), p.dtype, p.device,
      p.writable ? "write" : "read", p.users || "own sessions"] })));
  showGroups(state.groups);
  showServices(state);
  fill("slow", state.slow.map((e, i) => ({ key: i,
    cells: [seconds(e.age), milliseconds(e.seconds), e.op, e.user,
      sessionLink(e.session, e.name), e.site] })));
  for (const node of document.querySelectorAll(".slow-ms")) setText(node, state.slow_ms);
}
