/** The details of the selected runs: figures, a comparison, samples, settings and links to reports. */
import { figure, h } from "../../lib/dom.js";
import { formatCount, formatFigure, formatInteger, formatSeconds, formatShare, isNumber } from "../../lib/format.js";

const COMPARED = [
  ["State", (run) => run.state],
  ["Step", (run) => formatInteger(run.step)],
  ["Validation loss, windows (nats per token)", (run) => formatFigure(run.validation_loss)],
  ["Bits per byte, windows", (run) => formatFigure(run.bits_per_byte)],
  ["Bits per byte, whole documents", (run) => formatFigure(run.document_bits_per_byte)],
  ["Bits per byte above the floor, windows", (run) => formatFigure(bitsAboveFloor(run, run.bits_per_byte), 3)],
  ["Tokens", (run) => formatCount(run.tokens)],
  ["Tokens per second", (run) => formatCount(run.tokens_per_second)],
  ["Time", (run) => formatSeconds(run.seconds)],
  ["Parameters", (run) => formatCount(run.parameters)],
];

/**
 * Return the elements that describe runs. `settings` and `samples` are maps from the id of a run, and
 * `colourOf(id)` is the colour of a run in the chart.
 */
export function drawDetails(runs, { settings, samples, colourOf }) {
  const parts = [];
  if (runs.length === 1) parts.push(drawOne(runs[0]));
  else if (runs.length > 1) parts.push(drawComparison(runs, { settings, colourOf }));
  const texts = drawSamples(runs, { samples, colourOf });
  if (texts) parts.push(texts);
  const values = runs.length === 1 ? (settings.get(runs[0].id) ?? {}) : {};
  if (Object.keys(values).length) parts.push(drawSettings(values));
  return parts;
}

function drawOne(run) {
  const median = run.state === "running" ? "" : " (median)"; // while a run is active, the speed is the current one
  return h(
    "section",
    { class: "card", "aria-label": "Selected run" },
    h("div", { class: "row" }, h("h2", { class: "path" }, run.name), drawReports(run.reports)),
    run.state === "broken"
      ? h("div", { class: "notice problem" }, h("p", {}, "This run cannot be read: ", run.detail))
      : h(
          "dl",
          { class: "figures" },
          figure("State", run.state, describeState(run)),
          figure("Step", formatInteger(run.step), run.num_steps ? `of ${formatInteger(run.num_steps)}` : ""),
          figure("Validation loss, windows", formatFigure(run.validation_loss), "nats per token"),
          figure("Bits per byte, windows", formatFigure(run.bits_per_byte), describeDistance(run, run.bits_per_byte)),
          isNumber(run.document_bits_per_byte)
            ? figure(
              "Bits per byte, whole documents",
              formatFigure(run.document_bits_per_byte),
              describeDistance(run, run.document_bits_per_byte),
            )
            : null,
          figure(
            "Tokens",
            formatCount(run.tokens),
            isNumber(run.tokens_per_second) ? `${formatCount(run.tokens_per_second)} per second${median}` : "",
          ),
          figure(
            "Time",
            formatSeconds(run.seconds),
            isNumber(run.mfu) ? `${formatShare(run.mfu)} of the peak FLOPs${median}` : "",
          ),
          figure("Parameters", formatCount(run.parameters)),
          figure("Started", run.started ? run.started.slice(0, 10) : "–", run.started ? `${run.started.slice(11, 16)} UTC` : ""),
        ),
  );
}

/** Return how far a figure in bits per byte is above the entropy floor of a run, or null if that is not known. */
function bitsAboveFloor(run, bitsPerByte) {
  return isNumber(run.floor) && isNumber(bitsPerByte) ? bitsPerByte - run.floor : null;
}

function describeDistance(run, bitsPerByte) {
  const distance = bitsAboveFloor(run, bitsPerByte);
  return distance === null ? "" : `${formatFigure(distance, 3)} above the floor`;
}

/** Return what is known about a state: the reason for it, or the time that is left. */
function describeState(run) {
  if (run.detail) return run.detail;
  if (isNumber(run.seconds_left)) return `about ${formatSeconds(run.seconds_left)} left`;
  if (!run.ending || run.ending === run.state) return "";
  return run.state === "complete" ? `budget of ${run.ending} spent` : `ended by: ${run.ending}`;
}

function drawReports(reports) {
  return h(
    "span",
    { class: "end row reports" },
    reports.map((report) => h(
      "a",
      { href: `/reports/${report.id}`, target: "_blank", rel: "noopener", title: report.name },
      reports.length > 1 ? report.name : "Report",
    )),
  );
}

function drawComparison(runs, { settings: settingsOf, colourOf }) {
  const settings = runs.map((run) => settingsOf.get(run.id) ?? {});
  const differing = findDiffering(settings);
  const line = (name, values, className = "") => h(
    "tr",
    { class: className },
    h("th", { scope: "row" }, name),
    values.map((value) => h("td", { class: "number", title: isHash(value) && value }, shortenHash(value))),
  );
  const table = h(
    "table",
    { class: "compare" },
    drawComparisonHead(runs, colourOf),
    h("tbody", {}, COMPARED.map(([name, read]) => line(name, runs.map(read)))),
    differing.length > 0 && h(
      "tbody",
      {},
      h("tr", {}, h("th", { colspan: runs.length + 1, class: "group" }, "Settings that differ")),
      differing.map((key) => line(key, settings.map((each) => String(each[key] ?? "–")), "setting")),
    ),
  );
  return h(
    "section",
    { class: "card", "aria-label": "Comparison" },
    h("h2", {}, "Comparison"),
    h("div", { class: "scroll" }, table),
    drawReports([...new Map(runs.flatMap((run) => run.reports).map((report) => [report.id, report])).values()]),
  );
}

function drawComparisonHead(runs, colourOf) {
  const folder = commonFolder(runs.map((run) => run.name));
  const heads = runs.map((run) => h(
    "th",
    { scope: "col", class: "number", title: run.name },
    h("i", { style: { "--c": colourOf(run.id) } }),
    h("span", {}, shorten(run.name.slice(folder.length))),
  ));
  return h("thead", {}, h("tr", {}, h("th", {}, h("span", { class: "hidden" }, "figure")), heads));
}

/** Return the keys of the settings in which runs differ, without those of their data. */
function findDiffering(settings) {
  const readable = settings.filter((each) => Object.keys(each).length); // a broken run has no settings
  const keys = [...new Set(readable.flatMap((each) => Object.keys(each)))].filter((key) => !key.startsWith("data."));
  return keys.filter((key) => {
    const compared = readable.filter((each) => key in each || isNone(each, key));
    return new Set(compared.map((each) => String(each[key] ?? "–"))).size > 1;
  });
}

/**
 * Return whether a run without a setting has the value "none": it has no initial weights, or its optimizer, loss
 * or other part has no such option. Other runs without a setting are not compared in it, such as imported
 * models, which have no settings of training.
 */
function isNone(settings, key) {
  const part = key.match(/^(.+?)[._]options\./)?.[1]; // of optimizer.options.beta or model.norm_options.eps
  const hasPart = () => Object.keys(settings).some((each) => each.startsWith(part));
  return key.startsWith("init.") || (part !== undefined && hasPart());
}

function drawSamples(runs, { samples, colourOf }) {
  const texts = runs.flatMap(
    (run) => (samples.get(run.id) ?? []).slice(0, runs.length > 1 ? 1 : 4).map((sample) => ({ run, ...sample })),
  );
  if (!texts.length) return null;
  return h(
    "section",
    { class: "card", "aria-label": "Samples" },
    h("h2", {}, "Samples"),
    h("div", { class: "samples" }, texts.map(({ run, step, text }) =>
      h(
        "article",
        { class: "sample" },
        drawSampleTitle(run, step, runs.length > 1 && colourOf(run.id)),
        h("blockquote", { tabindex: 0 }, text.trim()),
      ))),
  );
}

function drawSampleTitle(run, step, colour) {
  if (!colour) return h("h3", {}, `Step ${formatInteger(step)}`);
  const mark = h("i", { style: { "--c": colour } });
  return h("h3", {}, mark, `${shorten(run.name)}, step ${formatInteger(step)}`);
}

function drawSettings(values) {
  const settings = Object.entries(values).filter(([, value]) => value !== null);
  return h(
    "details",
    { class: "card" },
    h("summary", {}, `Settings (${settings.length})`),
    h("dl", { class: "settings" }, settings.map(([key, value]) => h("div", {}, h("dt", {}, key), h("dd", {}, String(value))))),
  );
}

/** Return the folders that all names begin with, such as "runs/sweep/". */
function commonFolder(names) {
  const folder = names[0].slice(0, names[0].lastIndexOf("/") + 1);
  if (names.every((name) => name.startsWith(folder))) return folder;
  return commonFolder([folder.slice(0, -1), ...names.slice(1)]);
}

function isHash(text) {
  return /^[0-9a-f]{64}$/.test(text);
}

/** Return the beginning of a SHA-256; other texts are returned as they are. */
function shortenHash(text) {
  return isHash(text) ? `${text.slice(0, 12)}…` : text;
}

/** Return the last parts of a long name. */
function shorten(name) {
  return name.length > 28 ? `…${name.slice(-27)}` : name;
}
