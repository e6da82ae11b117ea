/** What the chosen exchanges have in common: quantiles of their latencies, and values with how often. */

import { ask, givenUp } from "./api.js";
import { counted, duration, printable, size } from "./text.js";

const BUSY_MS = 150;

export class Counts {
  /**
   * @param {HTMLElement} box
   * @param {object} to
   * @param {(name: string, word: string) => void} to.chosen a value is to be filtered to
   * @param {(failure: unknown) => void} to.failed
   */
  constructor(box, to) {
    this.box = box;
    this.to = to;
    this.stop = new AbortController();
    box.addEventListener("click", (event) => {
      const button = event.target instanceof Element ? event.target.closest("button") : null;
      if (button?.dataset.name && button.dataset.word !== undefined) to.chosen(button.dataset.name, button.dataset.word);
    });
  }

  /**
   * Count what a filter chooses.
   * @param {string} filter
   */
  async show(filter) {
    this.stop.abort();
    this.stop = new AbortController();
    const busy = setTimeout(() => this.box.setAttribute("aria-busy", "true"), BUSY_MS);
    try {
      const [stats, { facets }] = await Promise.all([
        ask("stats", { filter }, this.stop.signal), ask("facets", { filter }, this.stop.signal),
      ]);
      this.box.replaceChildren(...quantiles(stats), ...facets.flatMap((/** @type {Facet} */ one) => values(one, stats.exchanges)));
    } catch (failure) {
      if (!givenUp(failure)) this.to.failed(failure);
    } finally {
      clearTimeout(busy);
      this.box.removeAttribute("aria-busy");
    }
  }
}

/**
 * @typedef {{name: string, values: {text: string, word: string, count: number}[], others: number}} Facet
 */

/** @param {string} text */
function heading(text) {
  const made = document.createElement("h3");
  made.textContent = text;
  return made;
}

/**
 * @param {any} stats
 * @returns {HTMLElement[]}
 */
function quantiles(stats) {
  const about = document.createElement("p");
  about.textContent = `${counted(stats.exchanges)} exchanges, ${counted(stats.errors)} with errors; ` +
    `${size(stats.request_bytes)} asked, ${size(stats.response_bytes)} answered`;
  if (!stats.latency_us) return [heading("chosen"), about];
  const table = document.createElement("table");
  const names = ["p50", "p95", "p99", "max"];
  const rows = [
    ["", ...names],
    ...[["latency", stats.latency_us], ["not held", stats.not_held_us]].map(([name, found]) => [name, ...names.map((one) => duration(Math.round(found[one])))]),
  ];
  rows.forEach((cells, at) => {
    const row = table.insertRow();
    cells.forEach((text, place) => {
      const cell = document.createElement(at && place ? "td" : "th");
      cell.textContent = text;
      row.append(cell);
    });
  });
  return [heading("chosen"), about, table];
}

/**
 * @param {Facet} facet
 * @param {number} total
 * @returns {HTMLElement[]}
 */
function values(facet, total) {
  if (!facet.values.length) return [];
  const made = facet.values.map(({ text, word, count }) => {
    const button = document.createElement("button"), name = document.createElement("b"), number = document.createElement("span"), bar = document.createElement("i");
    button.type = "button";
    button.dataset.name = facet.name;
    button.dataset.word = word;
    name.textContent = printable(text) || '""';
    button.title = `filter to ${facet.name} == ${printable(word)}`;
    number.textContent = counted(count);
    bar.style.width = `${Math.min(100, (100 * count) / Math.max(1, total))}%`;
    button.append(name, number, bar);
    return button;
  });
  if (!facet.others) return [heading(facet.name), ...made];
  const more = document.createElement("p");
  more.textContent = `and ${counted(facet.others)} others`;
  return [heading(facet.name), ...made, more];
}
