// Asks this server for the overview every few seconds and shows it.

import { el } from "/dashboard/dom.js";
import { clock, duration } from "/dashboard/format.js";
import { PANELS, tiles } from "/dashboard/panels.js";
import { MORE } from "/dashboard/panels_more.js";

const EVERY_MS = 5000;
const PATIENCE_MS = 10000;
const TOKEN = "kvmanager-token";
const $ = (id) => document.getElementById(id);
const state = { doc: null, paused: false, failing: null, timer: 0, asking: null, drawn: new Map() };

// a window that cannot be chosen is as none
function chosen() {
  const asked = new URLSearchParams(location.search);
  const offered = [...$("window").options].map((option) => option.value);
  const window = asked.get("window");
  return { tenant: asked.get("tenant") || "", window: offered.includes(window) ? window : "3600" };
}

function choose(change) {
  const next = { ...chosen(), ...change };
  const asked = new URLSearchParams();
  if (next.tenant) asked.set("tenant", next.tenant);
  if (next.window !== "3600") asked.set("window", next.window);
  history.replaceState(null, "", asked.size ? `?${asked}` : location.pathname);
  refresh();
}

async function refresh() {
  clearTimeout(state.timer);
  state.asking?.abort();
  const asking = (state.asking = new AbortController());
  const impatient = setTimeout(() => asking.abort("late"), PATIENCE_MS);
  try {
    await ask(asking.signal);
  } catch (error) {
    if (asking === state.asking) failed("manager", String(error));
  } finally {
    clearTimeout(impatient);
    const wanted = !state.paused && !document.hidden && state.failing?.kind !== "refused";
    if (asking === state.asking && wanted) state.timer = setTimeout(refresh, EVERY_MS);
  }
}

async function ask(signal) {
  const { tenant, window } = chosen();
  const query = new URLSearchParams({ window_s: window });
  if (tenant) query.set("tenant", tenant);
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { authorization: `Bearer ${token}` } : {};
  const response = await fetch(`/v1/overview?${query}`, { headers, signal, cache: "no-store" });
  if (response.status === 401 || response.status === 403) return prompt(response.status, Boolean(token));
  if (response.status === 503) return failed("redis");
  const body = await response.json();
  if (!response.ok) return failed("refused", body.detail);
  succeeded(body);
}

function succeeded(doc) {
  if (state.failing) announce("Figures are live again");
  state.doc = doc;
  state.failing = null;
  $("banner").hidden = $("prompt").hidden = true;
  $("forget").hidden = !sessionStorage.getItem(TOKEN);
  const nobody = doc.namespaces === 0;
  const stranger = nobody && Boolean(doc.tenant);
  if (stranger) unknownTenant(doc);
  else if (nobody) $("empty-code").textContent = example();
  $("stranger").hidden = !stranger;
  $("empty").hidden = !nobody || stranger;
  $("content").hidden = nobody;
  $("content").classList.remove("old");
  offer(doc.tenants);
  if (!nobody) draw(doc);
  told();
}

function unknownTenant({ tenant, tenants }) {
  $("stranger-name").textContent = tenant;
  const first = tenants.slice(0, 20).join(", ");
  $("stranger-others").textContent = tenants.length ? `Known: ${first}${tenants.length > 20 ? ", ..." : ""}.` : "None is known so far.";
}

function failed(kind, detail) {
  const now = Date.now() / 1000;
  const since = state.failing?.kind === kind ? state.failing.since : state.doc && !state.failing ? state.doc.read_s : now;
  const first = state.failing?.kind !== kind;
  state.failing = { kind, since };
  const at = clock(since);
  const shown = { redis: ["Redis does not answer", `This manager runs; its Redis has not answered since ${at}. Engines go on with their own pages.`],
    manager: ["This manager does not answer", `It has not answered since ${at}. Another one over the same Redis shows the same figures.`],
    refused: ["The figures were refused", detail || "The service gave no reason."] }[kind];
  const banner = $("banner");
  banner.className = "banner bad";
  banner.replaceChildren(el("h2", {}, shown[0]), el("p", {}, kind === "refused" ? shown[1] : `${shown[1]} Asking again every ${EVERY_MS / 1000} s.`,
    state.doc ? ` What is shown is from ${clock(state.doc.read_s)}.` : ""));
  banner.hidden = false;
  $("prompt").hidden = true;
  $("content").classList.add("old");
  if (first) announce(`${shown[0]}. ${shown[1]}`);
  told();
}

function prompt(status, shown) {
  state.doc = null;
  sessionStorage.removeItem(TOKEN);
  $("content").hidden = $("empty").hidden = $("stranger").hidden = $("banner").hidden = true;
  $("forget").hidden = true;
  const error = !shown ? "" : status === 401 ? "This service does not know that token." : "That token is not for these figures: its role must be admin, and the tenant its own.";
  $("token-error").textContent = error;
  if ($("prompt").hidden) {
    $("prompt").hidden = false;
    $("token").focus();
  }
  if (status === 403 && chosen().tenant) history.replaceState(null, "", location.pathname);
  state.failing = null;
  told();
}

function told() {
  const mode = state.failing ? "bad" : state.paused ? "warn" : state.doc ? "ok" : "warn";
  $("dot").className = `dot ${mode}`;
  const { doc } = state;
  if (doc && !doc.read_s) doc.read_s = Date.now() / 1000;
  $("updated").textContent = !doc ? (state.failing ? "No figures" : "Waiting for a token")
    : `${state.failing ? "Stale, from" : state.paused ? "Paused at" : "Live,"} ${clock(doc.read_s)}`;
  if (!doc) return;
  const asked = duration(doc.window_s);
  $("covered").textContent = doc.covered_s === null ? `Counts are those since the beginning, which was less than ${asked} ago.`
    : `Counts are of the last ${asked}.`;
  if (doc.left_out) $("covered").textContent += ` ${doc.left_out} namespaces are too many and left out.`;
}

function announce(text) {
  $("announce").textContent = text;
}

function offer(tenants) {
  const { tenant } = chosen();
  const names = tenant && !tenants.includes(tenant) ? [...tenants, tenant].sort() : tenants;
  const select = $("tenant");
  const present = [...select.options].slice(1).map((option) => option.value);
  if (present.join("\n") !== names.join("\n")) {
    select.replaceChildren(el("option", { value: "" }, "All tenants"), ...names.map((name) => el("option", { value: name }, name)));
  }
  select.value = tenant;
}

// A panel's frame is made once, so that focus and opened tables outlive an update.
function frames() {
  $("panels").replaceChildren(...[...PANELS, ...MORE].map((panel) => {
    const body = el("div", { class: "body" });
    const region = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${panel.title}, as a table` });
    const more = el("details", {}, el("summary", {}, "As a table"), region);
    panel.parts = { body, region, more };
    return el("section", { class: `panel span-${panel.span}`, id: panel.id, "aria-labelledby": `${panel.id}-title` },
      el("h2", { id: `${panel.id}-title` }, panel.title), el("p", { class: "question" }, panel.question), body, more);
  }));
}

function draw(doc) {
  $("tiles").replaceChildren(...tiles(doc));
  for (const panel of [...PANELS, ...MORE]) drawPanel(panel, doc);
}

function drawPanel(panel, doc) {
  const { body, region, more } = panel.parts;
  const held = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  const left = [...body.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
  const made = panel.render(doc, Math.max(280, body.clientWidth || 600));
  body.replaceChildren(...made.body.flat(Infinity).filter(Boolean));
  region.replaceChildren(...[made.table].filter(Boolean));
  more.hidden = !made.table;
  body.querySelectorAll(".scroll").forEach((one, n) => {
    one.scrollLeft = left[n] || 0;
    if (held && one.getAttribute("aria-label") === held) one.focus({ preventScroll: true });
  });
}

function example() {
  return JSON.stringify({ global_kvmanager: { enabled: true, endpoint: location.origin } }, null, 2);
}

function begin() {
  frames();
  $("window").value = chosen().window;
  $("everybody").addEventListener("click", () => choose({ tenant: "" }));
  $("tenant").addEventListener("change", (event) => choose({ tenant: event.target.value }));
  $("window").addEventListener("change", (event) => choose({ window: event.target.value }));
  $("pause").addEventListener("click", () => {
    state.paused = !state.paused;
    $("pause").setAttribute("aria-pressed", String(state.paused));
    $("pause").textContent = state.paused ? "Resume" : "Pause";
    if (state.paused) clearTimeout(state.timer);
    else refresh();
    told();
  });
  $("forget").addEventListener("click", () => {
    sessionStorage.removeItem(TOKEN);
    refresh();
  });
  $("token-form").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, $("token").value.trim());
    $("token").value = "";
    refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) clearTimeout(state.timer);
    else if (!state.paused) refresh();
  });
  let width = innerWidth;
  addEventListener("resize", () => {
    if (innerWidth !== width && state.doc && !$("content").hidden) draw(state.doc);
    width = innerWidth;
  });
  refresh();
}

begin();
