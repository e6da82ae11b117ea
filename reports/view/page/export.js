/** What is chosen, as a file: the forms that there are. */

import { worded } from "./api.js";

/**
 * @param {string} filter
 * @param {string} sort
 * @param {boolean} bytes whether the capture may be at hand
 * @returns {{text: string, does: () => void}[]}
 */
export function forms(filter, sort, bytes) {
  const known = [["csv", "rows as CSV"], ["json", "rows as lines of JSON"], ["parquet", "rows as Parquet"]];
  if (bytes) known.push(["pcapng", "packets of their connections (pcapng)"]);
  return known.map(([format, text]) => ({
    text: text ?? "",
    does: () => {
      const link = document.createElement("a");
      link.href = `/api/1/export?${worded({ filter, sort, format: format ?? "" })}`;
      link.download = "";
      link.click();
    },
  }));
}
