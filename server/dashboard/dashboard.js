// The frame of the dashboard: keeps the token, selects the page, and refreshes it periodically.

import { ask, byId, seconds, setText } from "/page.js";
import { choose, showHistory } from "/history.js";
import { showOverview } from "/overview.js";
import { showSession } from "/session.js";

const PERIOD_MS = 1000;
let state = null;
let rounds = 0;

function tokenOfFragment() {
  const found = /^#token=(tt_[0-9a-f]+)$/.exec(location.hash);
  if (!found) return;
  sessionStorage.setItem("token", found[1]);
  window.history.replaceState(null, "", location.pathname);
}

// The number of the session in the page's address. Null if the overview is shown.
function wanted() {
  const found = /^#session=(\d{1,15})$/.exec(location.hash);
  return found ? Number(found[1]) : null;
}

function badge(text, good) {
  setText(byId("ready"), text);
  byId("ready").hidden = false;
  byId("ready").classList.toggle("good", good);
}

function showPage(name) {
  for (const page of ["login", "overview", "session"]) byId(page).hidden = page !== name;
  if (name !== "session") document.title = "teletensord";
}

async function refused(reply) {
  showPage("login");
  byId("ready").hidden = true;
  setText(byId("caller"), "");
  setText(byId("version"), "");
  setText(byId("refused"), sessionStorage.getItem("token") ? (await reply.text()).trim() : "");
}

async function show() {
  setText(byId("version"), state.version);
  badge(state.ready ? "ready" : "not ready", state.ready);
  setText(byId("caller"), state.caller.user + " (" + state.caller.role + "), up " + seconds(state.uptime));
  const id = wanted();
  showPage(id === null ? "overview" : "session");
  if (id !== null) return showSession(id);
  showOverview(state);
  if (rounds++ % 2 === 0) await showHistory(state.lanes);
}

async function update() {
  try {
    const reply = await ask("/api/state");
    if (reply.status === 401 || reply.status === 403) {
      await refused(reply);
    } else if (reply.ok) {
      state = await reply.json();
      await show();
    }
  } catch (error) {
    badge("no answer", false);
  }
}

async function work() {
  await update();
  window.setTimeout(work, PERIOD_MS);
}

byId("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", byId("token").value.trim());
  byId("token").value = "";
  update();
});
for (const each of [300, 3600]) {
  byId("range-" + each).addEventListener("click", () => choose(each, state ? state.lanes : 1));
}
window.addEventListener("hashchange", () => {
  tokenOfFragment();
  rounds = 0;
  window.scrollTo(0, 0);
  update();
});
document.addEventListener("changed", update);
tokenOfFragment();
work();
