// What was decided, the newest first.

import { make, shortId } from "./tools.js";

const MOST = 200;
const WORDS = { waits_for_prefix: "waits for a prefix that another computes", first_token: "first token", timed_out: "its time was over" };

export class Decisions {
  constructor(body, onRequest) {
    this.body = body;
    this.onRequest = onRequest;
  }

  add(events) {
    if (!events.length) return;
    const rows = events.slice(-MOST).map((event) => this.row(event)).reverse();
    this.body.prepend(...rows);
    while (this.body.rows.length > MOST) this.body.deleteRow(-1);
  }

  row(event) {
    const time = new Date(1000 * event.time);
    const numbers = Object.entries(event.numbers).map(([name, value]) => `${name.replaceAll("_", " ")} ${value}`);
    const told = [numbers.join(", "), event.reason].filter(Boolean).join(": ");
    const stamp = `${time.toLocaleTimeString("en-GB")}.${String(time.getMilliseconds()).padStart(3, "0")}`;
    return make("tr", {},
      make("td", {}, stamp), make("td", {}, String(event.step)),
      make("td", { title: event.request }, `${shortId(event.request)} / ${event.choice}`),
      make("td", {}, make("strong", {}, WORDS[event.event] ?? event.event), told ? make("em", {}, ` ${told}`) : ""));
  }
}
