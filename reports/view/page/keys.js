/** The keys: one table for what they do and for what `?` lists. Single keys act outside text fields only. */

/**
 * @typedef {object} Key
 * @property {readonly string[]} keys as events name them
 * @property {string} shown
 * @property {string} about
 * @property {(() => void) | null} does null: the pane with the focus knows
 */

/**
 * @param {readonly Key[]} table
 * @param {HTMLDialogElement} dialog
 * @param {(event: KeyboardEvent) => boolean} pane what the pane with the focus makes of a key
 */
export function listen(table, dialog, pane) {
  const list = dialog.querySelector("dl");
  for (const key of table) {
    if (!key.shown) continue; // said with another
    const name = document.createElement("dt"), about = document.createElement("dd");
    name.textContent = key.shown;
    about.textContent = key.about;
    list?.append(name, about);
  }
  const known = new Map(table.flatMap((key) => key.keys.map((name) => [name, key])));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    const { target } = event;
    if (document.body.inert || document.querySelector("dialog[open]")) return; // also where what had the focus in it is gone
    if (target instanceof HTMLInputElement || target instanceof HTMLTextAreaElement || (target instanceof Element && target.closest("dialog, [role=menu]"))) return;
    if (pane(event)) return event.preventDefault();
    if (target instanceof HTMLButtonElement && (event.key === "Enter" || event.key === " ")) return;
    const key = known.get(event.key);
    if (!key?.does) return;
    event.preventDefault();
    key.does();
  });
}
