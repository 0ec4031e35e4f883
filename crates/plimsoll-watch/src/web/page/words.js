// Numbers in words: bytes, times, counts. One place, so that the page says a thing the same way everywhere.

const MISSING = "–";
const SPACE = "\u00a0"; // between a number and its unit no line may break
const KIB = 1024;
export const BYTE_UNITS = [1, KIB, KIB ** 2, KIB ** 3, KIB ** 4];
const BYTE_NAMES = ["B", "KiB", "MiB", "GiB", "TiB"];

const digits = (most) => new Intl.NumberFormat("en", { maximumFractionDigits: most });
const [whole, tenth, hundredth] = [digits(0), digits(1), digits(2)];
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 4 });
const kilo = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 4 });

// The journal writes what is no finite number as a word, which is then the best word for it.
const written = (value, how) => (value === null || value === undefined ? MISSING : typeof value === "string" ? value : how(value));

export const count = (value) => written(value, (n) => whole.format(n));
export const figure = (value) => written(value, (n) => (n !== 0 && Math.abs(n) < 1e-3 ? n.toExponential(2) : short.format(n)));
export const compact = (value) => written(value, (n) => (n < 1e5 ? (n < 100 ? short : whole) : kilo).format(n));
export const percent = (value) => written(value, (n) => `${n > 0 && n < 0.1 ? tenth.format(100 * n) : whole.format(100 * n)}${SPACE}%`);

export function bytes(value) {
  return written(value, (n) => {
    const at = Math.max(BYTE_UNITS.findLastIndex((unit) => Math.abs(n) >= unit), 0);
    const size = n / BYTE_UNITS[at];
    return `${(at === 0 ? whole : size < 10 ? hundredth : tenth).format(size)}${SPACE}${BYTE_NAMES[at]}`;
  });
}

export function duration(seconds) {
  const unit = (n, name) => `${n}${SPACE}${name}`;
  return written(seconds, (s) => {
    if (s < 10) return unit(hundredth.format(s), "s");
    if (s < 99.5 && s !== 60) return unit(whole.format(s), "s");
    const minutes = Math.round(s / 60);
    if (minutes < 60) return unit(minutes, "min");
    const hours = Math.floor(minutes / 60);
    const two = (more, name, less, rest) => (less ? `${unit(more, name)} ${unit(less, rest)}` : unit(more, name));
    return hours < 48 ? two(hours, "h", minutes % 60, "min") : two(Math.floor(hours / 24), "d", hours % 24, "h");
  });
}

// To the second, as 1:02:03.
export function stopwatch(seconds) {
  const all = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60].map(String);
  return `${hours}:${minutes.padStart(2, "0")}:${rest.padStart(2, "0")}`;
}

export function moment(unixMs) {
  return written(unixMs, (ms) => {
    const date = new Date(ms);
    const two = (n) => String(n).padStart(2, "0");
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    return `${day} ${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  });
}

export const clock = (unixMs) => moment(unixMs).slice(-8);
