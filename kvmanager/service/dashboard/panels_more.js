// The panels about space, processes, prefixes and integrity.

import { over, shares } from "/dashboard/charts.js";
import { el, nothing, table } from "/dashboard/dom.js";
import { ago, bytes, count, duration, exact, share, words } from "/dashboard/format.js";

const MOST_ROWS = 8;
const scroll = (label, inner) => el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": `${label}, scrolls sideways` }, inner);
const mark = (kind, text) => el("span", { class: `mark ${kind}` }, text);

function spacePanel(doc, width) {
  const columns = [{ title: "Tenant" }, { title: "Used", number: true }, { title: "Orphans", number: true, wide: true }, { title: "Quota", number: true },
    { title: "Growth a day", number: true, wide: true }, { title: "Full in", number: true }];
  const rows = doc.space.map((one) => [
    el("span", { class: "of-quota" }, one.tenant, meter(one)), bytes(one.used_bytes), bytes(one.orphan_bytes),
    one.quota_bytes === null ? "none" : `${bytes(one.quota_bytes)} · ${share(one.used_bytes, one.quota_bytes)}`,
    one.grows_bytes_per_day === null ? null : bytes(one.grows_bytes_per_day), full(one)]);
  const body = [scroll("Space by tenant", table("Space by tenant", columns, rows))];
  if (doc.curve.length) {
    body.push(el("h3", {}, "Used"), ...over("Bytes used over time", doc.curve[0].from_s, doc.curve.map((one) => one.to_s),
      [{ name: "Used", color: "l3", area: true, values: doc.curve.map((one) => one.used_bytes) }], { width, format: bytes, binary: true }));
  }
  return { body };
}

function meter(one) {
  if (one.quota_bytes === null) return null;
  const part = Math.min(1, one.quota_bytes ? one.used_bytes / one.quota_bytes : 1);
  return el("span", { class: "bar", "aria-hidden": "true" },
    el("span", { class: part > 0.95 ? "fill-bad" : part > 0.8 ? "fill-recomputed" : "fill-l3", "--part": `${100 * part}%` }));
}

function full(one) {
  if (one.quota_bytes === null) return "–";
  if (one.days_to_full === 0) return mark("bad", "full");
  if (one.days_to_full !== null) return one.days_to_full < 2 ? mark("bad", duration(one.days_to_full * 86400)) : duration(one.days_to_full * 86400);
  return one.grows_bytes_per_day === null ? null : "not growing";
}

function prefetchPanel(doc) {
  const { prefetch } = doc;
  if (prefetch.pages === null) return { body: [nothing("Nothing was reported yet.")] };
  if (!prefetch.pages) return { body: [nothing("No page was asked for ahead of its use in this window.")] };
  const rest = Math.max(0, prefetch.pages - prefetch.used - prefetch.unfulfilled - prefetch.wasted - prefetch.cancelled);
  const parts = [["Used", prefetch.used, "ok"], ["Not there", prefetch.unfulfilled, "recomputed"],
    ["Wasted", prefetch.wasted, "bad"], ["Cancelled", prefetch.cancelled, "muted"], ["Open", rest, "l2"]]
    .map(([name, value, color]) => ({ name, value, color, text: `${count(value)} · ${share(value, prefetch.pages)}` }));
  return {
    body: [el("p", { class: "headline" }, `${share(prefetch.used, prefetch.pages)} of ${count(prefetch.pages)} pages used`),
      shares("Prefetched pages by fate", parts)],
    table: table("Prefetch", [{ title: "Fate" }, { title: "Pages", number: true }, { title: "Share", number: true }],
      parts.map((part) => [part.name, exact(part.value), share(part.value, prefetch.pages)])),
  };
}

function processesPanel(doc) {
  const { liveness, claims } = doc;
  if (!liveness.known) return { body: [nothing("No process is known.")] };
  const open = (liveness.breakers.down || 0);
  const facts = [
    [`${liveness.alive} alive, ${liveness.gone_lately} left or lost within the hour`, liveness.gone_lately ? "warn" : "ok"],
    [`${liveness.reported} of ${liveness.alive} report`, liveness.reported === liveness.alive ? "ok" : "warn"],
    [`${open} of ${liveness.reported} breakers open`, open ? "bad" : "ok"],
    [`${liveness.breakers.rebuilding || 0} rebuilding`, liveness.breakers.rebuilding ? "warn" : "ok"],
    [`${liveness.hung} hung`, liveness.hung ? "bad" : "ok"],
    [`${claims.whole ? "" : "at least "}${count(claims.orphans)} orphan claims, ${count(claims.held)} held`, claims.orphans ? "warn" : "ok"],
  ];
  const shown = liveness.processes;
  return {
    body: [
      el("ul", { class: "marks" }, facts.map(([text, kind]) => el("li", {}, mark(kind, text)))),
      scroll("Processes", processTable(doc, shown.slice(0, MOST_ROWS))),
      liveness.known > MOST_ROWS && el("p", { class: "note" }, `The first ${Math.min(MOST_ROWS, shown.length)} of ${liveness.known}, those in trouble first.`),
    ],
    table: shown.length > MOST_ROWS ? processTable(doc, shown) : null,
  };
}

function processTable(doc, processes) {
  const columns = [{ title: "Process" }, { title: "State" }, { title: "Model", wide: true }, { title: "Medium", wide: true },
    { title: "Mode", wide: true }, { title: "Pages", number: true, wide: true }, { title: "Used", number: true }, { title: "Heartbeat", number: true }];
  return table("Processes", columns, processes.map((one) => [
    el("span", { title: `process ${one.id}` }, `${one.host || "?"} · ${one.server || "?"} · rank ${one.rank}`),
    state(one), one.model, one.kind, one.mode && words(one.mode), one.pages === null ? null : count(one.pages),
    one.bytes === null ? null : [bytes(one.bytes), one.capacity_bytes > 0 && el("span", { class: "wide-only" }, ` · ${share(one.bytes, one.capacity_bytes)}`)],
    ago(Math.max(0, doc.as_of_s - one.seen_s))]));
}

function state(one) {
  if (!one.alive) return mark("idle", "gone");
  if (one.hung) return mark("bad", "hung");
  if (one.breaker === "down") return mark("bad", "breaker open");
  if (one.breaker === "rebuilding") return mark("warn", "rebuilding");
  return one.breaker === null ? mark("warn", "no report") : mark("ok", "alive");
}

function hottestPanel(doc) {
  const { asked, existed } = doc.stored;
  const dedup = asked === 0 ? nothing("No page was to be stored in this window.")
    : el("p", { class: "headline" }, asked === null ? "Unknown" : `${share(existed, asked)} of stores found the page there`);
  const note = asked > 0 && el("p", { class: "note" }, `${count(existed)} of ${count(asked)} pages to be stored were not written a second time.`);
  if (!doc.hottest.length) return { body: [dedup, note, nothing("No prefix was loaded lately.")] };
  const rows = doc.hottest.slice(0, MOST_ROWS).map((one) => [
    el("code", { title: one.digest }, `${one.digest.slice(0, 12)}…`), one.model, count(Math.round(one.loads)),
    one.pages === null ? null : count(one.pages)]);
  return {
    body: [dedup, note, el("h3", {}, "Hottest prefixes"), scroll("Hottest prefixes", table("Hottest prefixes",
      [{ title: "First page" }, { title: "Model" }, { title: "Loads", number: true }, { title: "Pages", number: true }], rows)),
      el("p", { class: "note" }, "Loads of long ago count less: half after an hour.")],
    table: table("Hottest prefixes", [{ title: "First page" }, { title: "Tenant" }, { title: "Loads", number: true }],
      doc.hottest.map((one) => [one.digest, one.tenant, one.loads.toFixed(1)])),
  };
}

function verdict(one) {
  const kinds = Object.entries(one.found).map(([kind, n]) => `${count(n)} ${words(kind)}`).join(", ");
  if (!one.clean) return mark("bad", kinds || "not clean");
  return one.unseen ? mark("warn", "partly checked:") : mark("ok", "clean");
}

function integrityPanel(doc) {
  const { integrity } = doc;
  const found = (n, text) => (n === null ? mark("warn", `unknown: ${text}`) : mark(n ? "bad" : "ok", `${count(n)} ${text}`));
  const checks = integrity.fsck.slice(0, MOST_ROWS).map((one) => [
    one.model, one.tenant, [verdict(one), one.unseen > 0 && ` ${one.unseen} of ${one.media} media never looked at`],
    count(one.repaired), ago(Math.max(0, doc.as_of_s - one.time_s))]);
  const never = integrity.namespaces - integrity.checked;
  const partly = integrity.fsck.filter((one) => one.unseen > 0).length;
  return {
    body: [
      el("ul", { class: "marks" },
        el("li", {}, found(integrity.checksum, "wrong checksums")),
        el("li", {}, found(integrity.stale, "stale locations")),
        el("li", {}, found(integrity.reported, "reported by others")),
        el("li", {}, mark(never ? "warn" : "ok", `${integrity.checked} of ${integrity.namespaces} namespaces checked`)),
        partly > 0 && el("li", {}, mark("warn", `${partly} of them in part`))),
      checks.length ? scroll("Last checks", table("Last checks of each namespace",
        [{ title: "Model" }, { title: "Tenant", wide: true }, { title: "Found", wraps: true }, { title: "Repaired", number: true }, { title: "Oldest", number: true }], checks))
        : nothing("No namespace has been checked: kvmanager fsck compares the registry with the media."),
    ],
  };
}

export const MORE = [
  { id: "space", title: "Space by tenant", question: "Who uses how much, and when is it full?", span: 6, render: spacePanel },
  { id: "processes", title: "Processes", question: "Who is there, and in what state?", span: 12, render: processesPanel },
  { id: "hottest", title: "Prefixes and deduplication", question: "What is loaded most, what is stored once?", span: 8, render: hottestPanel },
  { id: "prefetch", title: "Prefetch", question: "Was it worth asking ahead?", span: 4, render: prefetchPanel },
  { id: "integrity", title: "Integrity", question: "Are the bytes right, and when was that checked?", span: 12, render: integrityPanel },
];
