// The tiles, and the panels about what the cache is worth and how fast it is.

import { bars, histogram, legend, over, shares, spark } from "/dashboard/charts.js";
import { el, nothing, table } from "/dashboard/dom.js";
import { bytes, count, duration, exact, rate, share, words } from "/dashboard/format.js";

const SOURCES = [
  ["l1", "L1, GPU memory"],
  ["l2", "L2, host memory"],
  ["l3", "L3, this cache"],
  ["recomputed", "Computed again"],
];
const CAUSES = { capacity: "capacity of the medium", ttl: "expired: time to live", quota: "quota of the tenant", space: "free space of the medium", other: "other" };
export const sum = (counts) => Object.values(counts).reduce((total, n) => total + n, 0);
const ends = (curve) => curve.map((span) => span.to_s);
const perSecond = (span, value) =>
  value === null || value === undefined ? null : value / Math.max(span.to_s - span.from_s, 1e-9);

export function tiles(doc) {
  const { served, pages, worth, liveness } = doc;
  const gets = doc.latency.filter((one) => one.operation === "get");
  const slowest = gets.reduce((worst, one) => (one.p99_s > (worst?.p99_s ?? -1) ? one : worst), null);
  const used = doc.space.reduce((total, one) => total + one.used_bytes, 0);
  const trouble = sum(liveness.breakers) - (liveness.breakers.up || 0) + liveness.hung;
  return [
    tile("Prompt tokens from L3", share(served.l3, served.total),
      served.total === null ? "no engine tells" : `${count(served.l3)} of ${count(served.total)} tokens`),
    tile("Pages found", pages.looked_up ? share(pages.found, pages.looked_up) : share(pages.hits, pages.asked), foundDetail(pages)),
    tile("Compute time saved", duration(worth.saved_s),
      worth.saved_s === null ? (known(worth) ? "nothing was loaded" : "set sglang.prefill_tokens_per_s") : `for ${duration(worth.load_s)} of loading`),
    tile("Slowest reads, p99", slowest ? duration(slowest.p99_s) : "–",
      slowest ? `${slowest.kind}, ${count(slowest.late)} of ${count(slowest.calls)} late` : "no read in this window",
      slowest && slowest.late > slowest.calls / 100 ? "warn" : ""),
    tile("Space used", bytes(used), spaceDetail(doc.space), doc.space.some((one) => one.days_to_full !== null && one.days_to_full < 2) ? "warn" : ""),
    tile("Processes alive", liveness.known ? `${liveness.alive} of ${liveness.alive + liveness.gone_lately}` : "–",
      trouble ? `${trouble} with a breaker open, rebuilding or hung`
        : liveness.gone_lately ? `${liveness.gone_lately} left or lost within the hour` : `${liveness.reported} report, none in trouble`,
      trouble ? "warn" : ""),
  ];
}

// engines ask whether pages are there, then for those that are: only the first tells of what is not
function foundDetail({ asked, hits, looked_up, found }) {
  if (asked === null) return "nothing reported yet";
  const read = `${count(hits)} of ${count(asked)} read`;
  return looked_up ? `${count(found)} of ${count(looked_up)} looked up; ${read}` : read;
}

// whether the speed of computing is known, as measured or as configured
const known = (worth) => worth.saved_s !== null || worth.break_even_tokens !== null || worth.never || worth.prefill_tokens > 0;
const UNTOLD = "no engine tells how fast it computes. SGLang's plugin does where it can measure it; else set sglang.prefill_tokens_per_s";

function evenNote(worth) {
  if (worth.never) return "loading a token takes longer than computing it: raise page size or bandwidth";
  if (worth.break_even_tokens !== null) return "longer prefixes are loaded faster than they are computed";
  return known(worth) ? "nothing was loaded in this window" : UNTOLD;
}

function tile(name, value, detail, state) {
  return el("li", { class: `tile ${state || ""}` },
    el("span", { class: "name" }, name), el("span", { class: "figure" }, value),
    el("span", { class: "detail" }, state ? el("span", { class: "flag" }, "Look: ") : null, detail));
}

function spaceDetail(space) {
  const limited = space.filter((one) => one.quota_bytes !== null);
  if (!limited.length) return "no quota is set";
  const first = limited.reduce((a, b) => ((b.days_to_full ?? Infinity) < (a.days_to_full ?? Infinity) ? b : a));
  if (first.days_to_full === null) return `${limited.length} of ${space.length} tenants with a quota`;
  if (first.days_to_full === 0) return `${first.tenant} is full`;
  return `${first.tenant} is full in ${duration(first.days_to_full * 86400)}`;
}

function servedPanel(doc, width) {
  const { served, curve } = doc;
  if (served.total === null) {
    return { body: [nothing("No engine has told where its prompts' tokens came from. SGLang's plugin does, with its first requests.")] };
  }
  const parts = SOURCES.filter(([key]) => served[key] !== null).map(([key, name]) =>
    ({ name, value: served[key], text: share(served[key], served.total), color: key, key }));
  const untold = SOURCES.filter(([key]) => served[key] === null).map(([, name]) => name);
  const body = [...shares("Prompt tokens by source", parts)];
  if (curve.length) {
    body.push(...over("Prompt tokens per second by source over time", curve[0].from_s, ends(curve),
      [...parts].reverse().map((part) => ({ name: part.name.split(",")[0], color: part.key,
        values: curve.map((span) => perSecond(span, span.tokens[part.key] ?? 0)) })),
      { width, stacked: true, format: (n) => `${count(Math.round(n * 10) / 10)}/s` }));
  }
  if (untold.length) body.push(el("p", { class: "note" }, `None so far, or not told by the engine: ${untold.join("; ")}.`));
  return {
    body,
    table: table("Prompt tokens by source", [{ title: "Source" }, { title: "Tokens", number: true }, { title: "Share", number: true }],
      [...SOURCES.map(([key, name]) => [name, served[key] === null ? null : exact(served[key]), share(served[key], served.total)]),
        ["All that is known", exact(served.total), "100 %"]]),
  };
}

function worthPanel(doc) {
  const { worth } = doc;
  const net = worth.saved_s !== null && worth.load_s !== null ? worth.saved_s - worth.load_s : null;
  const even = worth.never ? "never" : worth.break_even_tokens === null ? "unknown" : `${count(worth.break_even_tokens)} tokens`;
  const facts = [
    ["Saved", duration(worth.saved_s), worth.loaded_tokens === null ? "what computing the loaded tokens would have taken"
      : `what computing ${count(worth.loaded_tokens)} loaded tokens would have taken`],
    ["Spent loading", duration(worth.load_s), "of all calls that read pages"],
    ["Break-even length", even, evenNote(worth)],
  ];
  const most = Math.max(worth.saved_s || 0, worth.load_s || 0);
  const balance = most > 0 && worth.saved_s !== null && bars([
    { name: "Saved", value: worth.saved_s, text: duration(worth.saved_s), color: "ok" },
    { name: "Spent", value: worth.load_s, text: duration(worth.load_s), color: "recomputed" },
  ], "ok");
  return {
    body: [
      el("p", { class: "headline" }, net === null ? (known(worth) ? "Nothing was loaded" : "Unknown without the prefill speed")
        : net >= 0 ? `${duration(net)} gained` : `${duration(-net)} lost`),
      balance,
      el("dl", { class: "facts" }, facts.map(([name, value, note]) =>
        [el("dt", {}, name), el("dd", {}, el("strong", {}, value), el("span", {}, note))])),
    ],
    table: table("Loading against computing", [{ title: "What" }, { title: "Value", number: true }], [
      ["Tokens loaded", worth.loaded_tokens === null ? null : exact(worth.loaded_tokens)],
      ["Time loading", worth.load_s === null ? null : duration(worth.load_s)],
      ["Tokens computed", worth.prefill_tokens === null ? null : exact(worth.prefill_tokens)],
      ["Time computing", worth.prefill_s === null ? null : duration(worth.prefill_s)],
      ["Median of asking", worth.ask_s === null ? null : duration(worth.ask_s)],
    ]),
  };
}

function missesPanel(doc) {
  const { asked, hits, misses, looked_up, found, absent } = doc.pages;
  if (asked === null) return { body: [nothing("Nothing was reported yet.")] };
  const missed = sum(misses);
  const rows = Object.entries(misses).map(([reason, n]) =>
    ({ name: words(reason), value: n, text: `${count(n)} · ${share(n, asked)}` }));
  const gone = Object.entries(absent).map(([reason, n]) =>
    ({ name: words(reason), value: n, text: `${count(n)} · ${share(n, sum(absent))}` }));
  return {
    body: [
      looked_up > 0 && [
        el("p", { class: "headline" }, `${count(looked_up - found)} of ${count(looked_up)} pages looked up were not there`),
        gone.length > 0 && bars(gone, "muted"),
        sum(absent) < looked_up - found && el("p", { class: "note" }, `Why is known of ${count(sum(absent))} of them.`)],
      el("h3", {}, `Asked for and not read: ${count(missed)} of ${count(asked)} pages`),
      rows.length ? bars(rows, "main") : nothing("No page that was asked for was missed."),
    ],
    table: table("Misses by reason", [{ title: "Pages" }, { title: "Number", number: true }, { title: "Of", number: true }, { title: "Share", number: true }],
      [["looked up and there", exact(found), exact(looked_up), share(found, looked_up)],
        ["asked for and read", exact(hits), exact(asked), share(hits, asked)],
        ...Object.entries(misses).map(([reason, n]) => [`not read: ${words(reason)}`, exact(n), exact(asked), share(n, asked)])]),
  };
}

function latencyPanel(doc, width) {
  const { latency, curve } = doc;
  if (!latency.length) return { body: [nothing("No call was made in this window.")] };
  const calls = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Latency by operation, scrolls sideways" },
    table("Latency by operation and medium",
      [{ title: "Operation" }, { title: "Calls", number: true, wide: true }, { title: "p50", number: true },
        { title: "p99", number: true }, { title: "Past deadline", number: true }, { title: "Spread", wide: true }],
      latency.slice(0, 12).map((one) => [`${one.operation} · ${one.kind}`, count(one.calls), duration(one.p50_s), duration(one.p99_s),
        el("span", { class: one.late ? "bad-text" : undefined }, one.late ? `${count(one.late)} · ${share(one.late, one.calls)}` : "0"),
        spark(filled(one.buckets))])));
  if (!curve.some((span) => span.get_p99_s !== null)) return { body: [calls] };
  const drawn = over("p99 of reads over time", curve[0].from_s, ends(curve),
    [{ name: "p99", color: "main", values: curve.map((span) => span.get_p99_s) }],
    { width: width > 900 ? width * 0.4 : width, format: duration });
  return { body: [el("div", { class: "two" }, calls, el("div", {}, el("h3", {}, "p99 of reads"), drawn))] };
}

// quarter octaves without a call between those that have one
function filled(buckets) {
  const at = (seconds) => Math.round(4 * Math.log2(seconds * 1e6));
  if (!buckets.length) return [];
  const values = Array(Math.min(108, at(buckets.at(-1)[0]) - at(buckets[0][0]) + 1)).fill(0);
  for (const [seconds, calls] of buckets) values[at(seconds) - at(buckets[0][0])] = calls;
  return values;
}

function bytesPanel(doc, width) {
  const { moved, curve } = doc;
  const span = doc.covered_s;
  const parts = [
    { name: "Read", color: "l2", text: bytes(moved.read_bytes) },
    { name: "Written", color: "recomputed", text: bytes(moved.written_bytes) },
  ];
  const keys = ["read_bytes", "written_bytes"];
  const mean = (n) => (n === null || !span ? null : rate(n / span));
  return {
    body: [
      legend(parts),
      curve.length ? over("Bytes per second read and written over time", curve[0].from_s, ends(curve),
        keys.map((key, n) => ({ name: parts[n].name, color: parts[n].color, values: curve.map((one) => perSecond(one, one[key])) })),
        { width, format: rate, binary: true }) : nothing("The curve begins with the second sample, ten seconds after the first."),
    ],
    table: table("Bytes", [{ title: "Direction" }, { title: "Bytes", number: true }, { title: "Mean", number: true }], [
      ["Read and verified", moved.read_bytes === null ? null : bytes(moved.read_bytes), mean(moved.read_bytes)],
      ["Written", moved.written_bytes === null ? null : bytes(moved.written_bytes), mean(moved.written_bytes)],
    ]),
  };
}

function wentPanel(doc) {
  const { stored } = doc;
  if (stored.asked === null) return { body: [nothing("Nothing was reported yet.")] };
  const evicted = Object.entries(stored.evicted).map(([cause, n]) =>
    ({ name: CAUSES[cause] || cause, value: n, text: count(n) }));
  const refused = Object.entries(stored.refused).map(([reason, n]) =>
    ({ name: words(reason), value: n, text: `${count(n)} · ${share(n, stored.asked)}` }));
  return {
    body: [
      el("h3", {}, `Evicted and expired: ${count(sum(stored.evicted))} pages`),
      evicted.length ? bars(evicted, "main") : nothing("None in this window."),
      el("h3", {}, `Refused: ${count(sum(stored.refused))} of ${count(stored.asked)} pages to be stored`),
      refused.length ? bars(refused, "recomputed") : nothing("None in this window."),
    ],
    table: table("Pages that went, and that were refused", [{ title: "What" }, { title: "Why" }, { title: "Pages", number: true }], [
      ...Object.entries(stored.evicted).map(([cause, n]) => ["Evicted", CAUSES[cause] || cause, exact(n)]),
      ...Object.entries(stored.refused).map(([reason, n]) => ["Refused", words(reason), exact(n)]),
      ["Stored", "–", exact(stored.stored)],
    ]),
  };
}

// ages are known by powers of two
const between = (seconds) => (seconds <= 1 ? "less than 1 s" : `${duration(seconds / 2)} to ${duration(seconds)}`);

function agesPanel(doc, width) {
  const { ages } = doc;
  if (!ages.pages) return { body: [nothing("Nothing was evicted in this window: the cache holds all that came.")] };
  const first = Math.log2(ages.buckets[0][0]);
  const last = Math.log2(ages.buckets.at(-1)[0]);
  const counts = new Map(ages.buckets);
  const columns = Array.from({ length: last - first + 1 }, (_, n) => {
    const seconds = 2 ** (first + n);
    const value = counts.get(seconds) || 0;
    return { name: duration(seconds), value, text: `${count(value)} pages, ${between(seconds)}` };
  });
  return {
    body: [
      el("p", { class: "headline" }, `Median: ${between(ages.p50_s)}`),
      histogram(`Pages by age at eviction; the median of ${count(ages.pages)} is ${between(ages.p50_s)}`, columns, "main", width),
      el("p", { class: "note" }, "Time since last use when a page was evicted: about how long the cache remembers. Ages are counted in steps that double."),
    ],
    table: table("Age at eviction", [{ title: "Unused for less than" }, { title: "Pages", number: true }, { title: "Share", number: true }],
      columns.map((one) => [one.name, exact(one.value), share(one.value, ages.pages)])),
  };
}

export const PANELS = [
  { id: "served", title: "Served by source", question: "Where did the tokens of prompts come from?", span: 8, render: servedPanel },
  { id: "worth", title: "Worth of loading", question: "Is reading faster than computing?", span: 4, render: worthPanel },
  { id: "misses", title: "Misses by reason", question: "Why was a page not read?", span: 4, render: missesPanel },
  { id: "went", title: "Evicted, expired, refused", question: "What went, what was not taken, and why?", span: 4, render: wentPanel },
  { id: "ages", title: "Age at eviction", question: "How long does the cache remember?", span: 4, render: agesPanel },
  { id: "latency", title: "Latency", question: "How long do calls take, by operation and medium?", span: 12, render: latencyPanel },
  { id: "bytes", title: "Bytes in and out", question: "How much is moved?", span: 6, render: bytesPanel },
];
