// Joins what the server sends of a run's curves: of a long run only what is new since the last answer.

/** @import { Series } from "./server" */

/**
 * The curves to draw: `news`, or with `from` the earlier ones up to that step and `news` from there on.
 * @param {Series | null | undefined} before
 * @param {Series} news
 * @returns {Series}
 */
export const joinSeries = (before, news) => {
  if (news.from === undefined || !before) return news;
  const kept = before.first.findIndex((step) => step >= news.from);
  const cut = kept < 0 ? before.first.length : kept;
  const join = (old, added) => {
    if (Array.isArray(added)) return [...old.slice(0, cut), ...added];
    if (!added || typeof added !== "object") return added;
    return Object.fromEntries(Object.entries(added).map(([name, value]) => [name, join(old[name], value)]));
  };
  return join(before, news);
};
