// Numbers as people read them. null is unknown, and never 0.

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const digits = (value) =>
  new Intl.NumberFormat("en", { maximumSignificantDigits: 3, useGrouping: false }).format(value);
const UNKNOWN = "unknown";

function scaled(value, base, units) {
  let n = 0;
  while (n < units.length - 1 && Math.abs(value) >= base * 0.9995) {
    value /= base;
    n += 1;
  }
  return `${digits(value).replace("-", "−")}${units[n]}`;
}

export function count(value) {
  if (value === null || value === undefined) return UNKNOWN;
  if (Math.abs(value) < 10000) return grouped.format(value);
  return scaled(value / 1000, 1000, [" k", " M", " G", " T"]);
}

export const exact = (value) =>
  value === null || value === undefined ? UNKNOWN : grouped.format(value);

export function bytes(value) {
  if (value === null || value === undefined) return UNKNOWN;
  return scaled(value, 1024, [" B", " KiB", " MiB", " GiB", " TiB", " PiB"]);
}

export const rate = (value) => (value === null ? UNKNOWN : `${bytes(value)}/s`);

export function share(part, whole) {
  if (part === null || whole === null || part === undefined || whole === undefined) return UNKNOWN;
  if (!whole) return "–";
  const percent = (100 * part) / whole;
  if (part > 0 && percent < 0.1) return "< 0.1 %";
  if (part < whole && percent > 99.9) return "> 99.9 %";
  return `${percent.toFixed(percent >= 99.95 || percent === 0 ? 0 : 1)} %`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return UNKNOWN;
  const size = Math.abs(seconds);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${digits(seconds * 1e6)} µs`;
  if (size < 1) return `${digits(seconds * 1e3)} ms`;
  if (size < 120) return `${digits(seconds)} s`;
  if (size < 3600) return `${digits(seconds / 60)} min`;
  if (size < 172800) return `${digits(seconds / 3600)} h`;
  if (size < 730 * 86400) return `${digits(seconds / 86400)} days`;
  return `${digits(seconds / 86400 / 365)} years`;
}

export function ago(seconds) {
  return seconds < 1 ? "just now" : `${duration(seconds < 120 ? Math.round(seconds) : seconds)} ago`;
}

export const clock = (seconds) =>
  new Date(seconds * 1000).toLocaleTimeString("en-GB", { hour12: false });

export function moment(seconds, spanSeconds) {
  const date = new Date(seconds * 1000);
  if (spanSeconds > 2 * 86400) {
    return date.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
  }
  const shown = { hour: "2-digit", minute: "2-digit", hour12: false };
  if (spanSeconds < 900) shown.second = "2-digit";
  return date.toLocaleTimeString("en-GB", shown);
}

const REASONS = {
  no_space: "no space on the medium", quota: "quota of the tenant", mode: "mode: off or read",
  io_error: "I/O error", skipped: "not tried", other_host: "on another host's disk",
};

// a reason or cause as words: never_written -> never written
export const words = (name) => REASONS[name] || name.replaceAll("_", " ");
