// The page of one session, at #session=ID.

import {
  actions, ask, byId, bytes, client, element, fill, meters, milliseconds, nameOf, place, plural,
  rate, seconds, setText, shape,
} from "/page.js";
import { memoryMeters } from "/overview.js";

// The daemon's settings (docs/operating.md, "Budgets") without the prefix "session_".
const LIMITS = { handles: "Tensors", tape: "Names, tape and queue", staged: "Uploads that are not used yet",
  programs: "Captured programs", program_steps: "Steps of captured programs",
  program_bytes: "Bytes of captured programs", kept: "Names that tensors are kept under",
  published: "Names that tensors are published under", plan_ms: "Planning of captured programs, ms" };

let shown = 0;  // Number of the session whose buttons are displayed. 0 means none.

function facts(s) {
  const queue = s.queued === 0 ? "empty" : plural(s.queued, "command") + ", about "
    + seconds(s.wait) + (s.ahead ? ", behind " + plural(s.ahead, "session") : "");
  const gone = " (the session ends " + seconds(s.lease) + " after its client has left and its work is done)";
  return [["User", s.user], ["Client", s.client || "not told"], ["Address", s.peer],
    ["Version of the client", s.client_version], ["State", client(s) + (s.attached ? "" : gone)],
    ["Opened", seconds(s.age) + " ago"], ["Handles", s.handles], ["Queue", queue],
    ["Commands so far", s.completed + " (" + s.repeated + " of them repeated)"],
    ["Lane time", seconds(s.lane_seconds)],
    ["Lanes now", rate(s.id, s.lane_seconds, s.now).toFixed(2)],
    ["Last snapshot", s.not_saved ? "not written: " + s.not_saved : "no failure"]];
}

function showFacts(s) {
  const list = byId("session-facts");
  facts(s).forEach(([name, value], i) => {
    if (!list.children[2 * i]) list.append(element("dt", name), element("dd"));
    setText(list.children[2 * i + 1], value);
  });
}

function limits(s) {
  const rows = s.memory.filter((m) => m.used > 0 || m.device === "cpu").map((m) => ({
    key: "memory " + m.device,
    cells: ["Memory on " + m.device + ", this session",
      meters([{ label: "Memory on " + m.device, used: m.used, quota: m.quota }])] }));
  for (const meter of s.of_user ? memoryMeters(s.of_user) : []) {
    rows.push({ key: meter.label, cells: [meter.label + ", all sessions", meters([meter])] });
  }
  for (const amount of s.amounts.filter((a) => a.limit > 0)) {
    const name = LIMITS[amount.name] || amount.name;
    rows.push({ key: amount.name, cells: [name,
      meters([{ label: name, used: amount.used, quota: amount.limit,
        text: amount.bytes ? undefined : amount.used + " of " + amount.limit }])] });
  }
  return rows;
}

export async function showSession(id) {
  const reply = await ask("/api/session?id=" + id);
  byId("session-gone").hidden = reply.ok;
  byId("session-page").hidden = !reply.ok;
  if (!reply.ok) {
    setText(byId("session-gone"), reply.status === 404
      ? "Session " + id + " has ended, or is not yours." : (await reply.text()).trim());
    return;
  }
  const s = await reply.json();
  setText(byId("session-title"), "Session " + nameOf(s));
  document.title = "Session " + nameOf(s) + " – teletensord";
  if (shown !== s.id) byId("session-actions").replaceChildren(actions(s));
  shown = s.id;
  showFacts(s);
  fill("session-limits", limits(s));
  fill("session-tensors", s.tensors.map((t, i) => ({ key: i,
    cells: [bytes(t.bytes), shape(t.shape), t.dtype || "", place(t), t.site] })));
  fill("session-slow", s.slow.map((e, i) => ({ key: i,
    cells: [seconds(e.age), milliseconds(e.seconds), e.op, e.site] })));
  fill("session-errors", s.errors.map((e, i) => ({ key: i,
    cells: [seconds(e.age), e.raised ? "yes" : "not yet", e.text + (e.site ? "\n" + e.site : "")] })));
}
