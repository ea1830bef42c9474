/** The axes of charts: linear or logarithmic, with ticks at round numbers. */

/** Return an axis for values: pixelOf(value), and ticks. `tight`: limits are those of the data. */
export function makeAxis(values, { log = false, start, end, tight = false, count = 6 }) {
  let low = Infinity;
  let high = -Infinity;
  for (const value of values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  if (!(low <= high)) [low, high] = log ? [1, 10] : [0, 1];
  if (low === high) [low, high] = log ? [low / 2, high * 2] : [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  const scale = log ? Math.log10 : (value) => value;
  if (!tight && log) [low, high] = [low / 1.15, high * 1.15];
  if (!tight && !log) {
    const step = niceStep((high - low) / Math.max(2, count));
    [low, high] = [Math.floor(low / step + 1e-9) * step, Math.ceil(high / step - 1e-9) * step];
  }
  const [from, to] = [scale(low), scale(high)];
  const pixelOf = (value) => start + ((scale(value) - from) / (to - from)) * (end - start);
  return { pixelOf, ticks: log ? logTicks(low, high, count) : linearTicks(low, high, count), low, high };
}

function niceStep(size) {
  const power = 10 ** Math.floor(Math.log10(size));
  const share = size / power;
  return power * (share <= 1 ? 1 : share <= 2 ? 2 : share <= 5 ? 5 : 10);
}

function linearTicks(low, high, count) {
  const step = niceStep((high - low) / Math.max(2, count));
  const ticks = [];
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-9; index += 1) {
    ticks.push(Number((index * step).toPrecision(12)));
  }
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 0.8) return linearTicks(low, high, count);
  const shares = decades > count ? [1] : decades > 1.5 ? [1, 3] : [1, 2, 5];
  const ticks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    for (const share of shares) {
      const tick = Number((share * 10 ** power).toPrecision(6));
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks.length >= 2 ? ticks : linearTicks(low, high, count);
}

/** Return all digits of a tick, which are few: different ticks must have different labels. */
export function formatTick(value) {
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) return Number(value.toPrecision(6)).toExponential().replace("e-", "e−");
  const power = size < 10000 ? 0 : Math.min(4, Math.floor(Math.log10(size) / 3));
  const scaled = Number((value / 1000 ** power).toPrecision(6));
  return scaled.toLocaleString("en", { maximumFractionDigits: 8 }) + ["", " k", " M", " B", " T"][power];
}
