/** What is chosen, as a file: the forms that there are. */

import { ask, worded } from "./api.js";

/**
 * @param {string} filter
 * @param {string} sort
 * @param {boolean} bytes whether the capture may be at hand
 * @param {boolean} growing whether more comes: a report is on all
 * @param {(failure: unknown) => void} failed
 * @returns {{text: string, does: () => void}[]}
 */
export function forms(filter, sort, bytes, growing, failed) {
  const known = [["csv", "rows as CSV"], ["json", "rows as lines of JSON"], ["parquet", "rows as Parquet"]];
  if (bytes) known.push(["pcapng", "packets of their connections (pcapng)"]);
  return [
    ...known.map(([format, text]) => ({
      text: text ?? "",
      does: () => void save({ filter, sort, format: format ?? "" }).catch(failed),
    })),
    ...(growing ? [] : [{ text: "report on all exchanges (opens)", does: () => void open("/api/1/report", "_blank", "noopener") }]),
  ];
}

/**
 * Have the browser save a file. It would say no more of a refusal than that a download failed: that is asked first.
 * @param {Record<string, string>} query
 */
async function save(query) {
  const asked = worded(query); // the partition that is looked within may be another one when the answer comes
  await ask("export", { ...query, check: 1 });
  const link = document.createElement("a");
  link.href = `/api/1/export?${asked}`;
  link.download = "";
  link.click();
}
