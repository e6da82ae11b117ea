/** The page as a frame: its elements, a border that can be moved, light or dark. */

/**
 * @template {HTMLElement} T
 * @param {string} id
 * @param {new () => T} [kind]
 * @returns {T}
 */
export function element(id, kind) {
  const found = document.getElementById(id);
  if (!(found instanceof (kind ?? HTMLElement))) throw new Error(`the page has no ${id}`);
  return /** @type {T} */ (found);
}

/** A border that can be moved, by mouse and keys. */
export function splitting() {
  const split = element("split"), main = element("main");
  /** @param {number} share */
  const set = (share) => {
    const value = Math.min(Math.max(share, 15), 85);
    main.style.setProperty("--list", `${value}%`);
    split.setAttribute("aria-valuenow", String(Math.round(value)));
  };
  split.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    split.setPointerCapture(event.pointerId);
    const box = main.getBoundingClientRect();
    /** @param {PointerEvent} now */
    const follow = (now) => set(((now.clientY - box.top) / box.height) * 100);
    split.addEventListener("pointermove", follow);
    split.addEventListener("lostpointercapture", () => split.removeEventListener("pointermove", follow), { once: true });
  });
  split.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -5, ArrowDown: 5 }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    set(Number(split.getAttribute("aria-valuenow")) + step);
  });
  set(50);
}

/**
 * @param {() => void} changed what is drawn by hand is drawn again
 */
export function themed(changed) {
  const root = document.documentElement;
  const now = () => root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  const kept = localStorage.getItem("kwire-theme");
  if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  element("theme").addEventListener("click", () => {
    root.dataset.theme = now() === "dark" ? "light" : "dark";
    localStorage.setItem("kwire-theme", root.dataset.theme);
    changed();
  });
}
