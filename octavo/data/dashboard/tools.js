// Small things that every part of the page uses.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export function count(number) {
  return whole.format(number);
}

export function percent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}

export function seconds(value) {
  if (value === 0) return "0";
  if (value < 1) return `${(1000 * value).toFixed(value < 0.01 ? 1 : 0)} ms`;
  return value < 100 ? `${value.toFixed(1)} s` : `${count(value)} s`;
}

// An element with attributes, properties (those that are no strings) and children.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "string") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

// Writes only what is different: a page that stands still costs no layout.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function shortId(id) {
  return id.length <= 14 ? id : `…${id.slice(-8)}`;
}

// Colours as the style sheet has them now, light or dark.
export function theme() {
  const style = getComputedStyle(document.documentElement);
  return new Proxy({}, { get: (_, name) => style.getPropertyValue(`--${name}`).trim() });
}

export function onThemeChange(listener) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", listener);
}

// A canvas as large as the screen's own pixels make it; what is drawn is in CSS pixels.
export function fitCanvas(canvas, width, height) {
  const scale = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const context = canvas.getContext("2d");
  context.setTransform(scale, 0, 0, scale, 0, 0);
  return context;
}
