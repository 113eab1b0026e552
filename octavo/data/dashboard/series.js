// The page of metrics, read; and what charts make of two looks at it.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Samples by name: a list of [labels, value], the model's label left out.
export function parse(page) {
  const found = new Map();
  for (const line of page.split("\n")) {
    const match = LINE.exec(line);
    if (!match) continue;
    const labels = {};
    for (const [, name, value] of (match[2] ?? "").matchAll(LABEL)) if (name !== "model_name") labels[name] = value;
    if (!found.has(match[1])) found.set(match[1], []);
    found.get(match[1]).push([labels, Number(match[3])]);
  }
  return found;
}

// Of all samples of a name that have these labels, the sum; NaN where there is none.
export function total(samples, name, labels = {}) {
  const wanted = Object.entries(labels);
  const fitting = (samples.get(name) ?? []).filter(([own]) => wanted.every(([key, value]) => own[key] === value));
  return fitting.length ? fitting.reduce((sum, [, value]) => sum + value, 0) : NaN;
}

// Of a counter. One that is less than before began at 0 again in between: its engine, or its server, is another one.
export function rate(before, now, name) {
  const counted = total(now.samples, name), earlier = total(before.samples, name);
  return (counted < earlier ? counted : counted - earlier) / (now.time - before.time);
}

// The q-quantile of what a histogram has counted between two looks; null where that is nothing.
export function quantile(before, now, name, q) {
  const buckets = new Map();
  for (const [sign, look] of [[1, now], [-1, before]]) {
    for (const [labels, value] of look.samples.get(`${name}_bucket`) ?? []) {
      const bound = labels.le === "+Inf" ? Infinity : Number(labels.le);
      buckets.set(bound, (buckets.get(bound) ?? 0) + sign * value);
    }
  }
  const bounds = [...buckets.keys()].sort((a, b) => a - b);
  const all = buckets.get(Infinity) ?? 0;
  if (all <= 0) return null;
  let below = 0, low = 0;
  for (const bound of bounds) {
    const upTo = buckets.get(bound);
    if (upTo >= q * all) return bound === Infinity ? low : low + ((bound - low) * (q * all - below)) / (upTo - below || 1);
    [below, low] = [upTo, bound];
  }
  return low;
}
