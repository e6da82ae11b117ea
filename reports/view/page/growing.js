/** How far the analysis of a capture is, or how many columns of a dataset are made, told by the server until it is done. */

import { Refused } from "./api.js";
import { counted, printable } from "./text.js";

/** What is done meanwhile, and that it was not done to its end. */
const ANALYSIS = { doing: "analysing", failed: "the analysis ended early" };
const COLUMNS = { doing: "preparing the dataset's columns", failed: "not all of the dataset is shown" };

/**
 * @param {HTMLElement} box where it is said
 * @param {object} to
 * @param {() => Promise<void>} to.grown there is more
 * @param {() => void} to.done there is all
 * @param {(failure: unknown) => void} to.failed
 */
export function growing(box, to) {
  const source = new EventSource("/api/1/events");
  let round = -1, before = Promise.resolve();
  source.onmessage = (event) => {
    const told = JSON.parse(event.data);
    if (told.done) source.close();
    const { doing, failed } = told.doing === "columns" ? COLUMNS : ANALYSIS;
    const share = told.size ? ` ${Math.floor((100 * told.read) / told.size)} %` : "";
    box.hidden = told.done && !told.error;
    box.classList.toggle("bad", Boolean(told.error));
    box.textContent = told.error
      ? printable(`${failed}: ${told.error.message} — ${told.error.hint}`)
      : `${doing}${share}: the first ${counted(told.exchanges)}`;
    if (told.round === round) return;
    round = told.round;
    before = before.then(to.grown).catch(to.failed).then(() => { if (told.done) to.done(); }); // one after the other
  };
  source.onerror = () => {
    if (source.readyState === EventSource.CLOSED) return;
    source.close();
    to.failed(new Refused({ message: "kwire view does not answer any more", hint: "start it again: the page stays as it is" }));
  };
}
