/** Numbers and tokens as text. */

const PREFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y", "R", "Q"];

/** 1234567 → "1,234,567" */
export function formatInteger(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en") : "–";
}

/** 1, "token" → "1 token"; 2000, "token" → "2,000 tokens" */
export function formatQuantity(count, noun) {
  return `${formatInteger(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** 22696448 → "22.7 M" (k, M, B for billions, T for trillions) */
export function formatCount(value) {
  return scale(value, ["", " k", " M", " B", " T"]);
}

/** 3.9e18 → "3.90 EFLOP" */
export function formatFlops(value) {
  return scale(value, PREFIXES.map((prefix) => ` ${prefix}FLOP`));
}

/** 144936960 → "145 MB" (decimal units) */
export function formatBytes(value) {
  return scale(value, PREFIXES.map((prefix) => ` ${prefix}B`));
}

/** 41800 kilowatt hours → "41.8 MWh" */
export function formatEnergy(value) {
  return isNumber(value) ? scale(1000 * value, PREFIXES.map((prefix) => ` ${prefix}Wh`)) : "–";
}

function scale(value, units) {
  if (!isNumber(value)) return "–";
  let power = 0;
  let scaled = Math.abs(value);
  while (scaled >= 999.5 && power < units.length - 1) {
    scaled /= 1000;
    power += 1;
  }
  const digits = power === 0 && Number.isInteger(value) ? 0 : scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0;
  return `${value < 0 ? "−" : ""}${scaled.toFixed(digits)}${units[power]}`;
}

/** 3725 → "1 h 2 min"; 8.6e12 → "273 k years" */
export function formatSeconds(value) {
  if (!isNumber(value)) return "–";
  if (value < 1) return value < 0.001 ? `${(value * 1e6).toFixed(0)} µs` : `${(value * 1000).toFixed(value < 0.01 ? 1 : 0)} ms`;
  if (value < 10) return `${value.toFixed(1)} s`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const first = units.findIndex(([, size]) => value >= size);
  const years = value / 86400 / 365.25;
  if (years >= 10_000) return `${formatCount(years)} years`;
  if (years >= 2) return `${formatInteger(years)} years`;
  if (value >= 100 * 86400) return `${formatInteger(value / 86400)} d`;
  const [unit, size] = units[first];
  if (!units[first + 1]) return `${Math.round(value)} s`;
  const [next, part] = units[first + 1];
  const rest = Math.round((value % size) / part);
  if (rest * part === size) return `${Math.floor(value / size) + 1} ${unit}`;
  return rest ? `${Math.floor(value / size)} ${unit} ${rest} ${next}` : `${Math.floor(value / size)} ${unit}`;
}

/** A loss or a similar figure: 1.60377 → "1.604" */
export function formatFigure(value, digits = 4) {
  if (!isNumber(value)) return "–";
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return Math.abs(value) >= 1000 ? formatInteger(value) : String(Number(value.toPrecision(digits)));
}

/** 0.451 → "45 %" */
export function formatShare(value) {
  return isNumber(value) ? `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %` : "–";
}

export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Return a token {text, stop} as a part of a text; line breaks and tokens that end a text are visible. */
export function tokenText(token) {
  if (token.stop) return stopLabel(token.text);
  return token.text === "\n" ? "↵\n" : token.text;
}

/** Return a token {text, stop} as one line of text: spaces and line breaks are visible. */
export function tokenLabel(token) {
  if (token.stop) return stopLabel(token.text);
  return token.text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥");
}

/** Return a special token as text; each of them ends a text. */
function stopLabel(text) {
  return text === "<|endoftext|>" ? "⟨end⟩" : `⟨end ${text}⟩`;
}

/** Return a token in quotation marks. */
export function quoted(token) {
  return `“${tokenLabel(token)}”`;
}

/** 0.0123 → "1.2 %" */
export function formatProbability(value) {
  if (value > 0.9995 && value < 1) return ">99.9 %";
  if (value > 0 && value < 0.0005) return "<0.1 %";
  return `${(100 * value).toFixed(1)} %`;
}

/** 3.14159 → "3.14" (bits) */
export function formatBits(value, digits = 2) {
  if (value === null || value === undefined) return "–";
  const text = Math.abs(value).toFixed(digits);
  return `${value < 0 && Number(text) ? "−" : ""}${text}`;
}
