// Formats durations, sizes, numbers and counts, in the page's language.

import { counted, language, t } from "./locale.js";

// A number with as many decimals, and the language's own sign before them.
export const formatFixed = (value, digits) =>
  value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits, useGrouping: false });
export const formatWhole = (value) => value.toLocaleString(language);

export const formatDuration = (seconds) => {
  if (seconds === null || seconds === undefined || !isFinite(seconds)) return "–";
  if (seconds < 10) return `${formatFixed(seconds, 1)} s`;
  const s = Math.round(seconds);
  if (s < 60) return `${s} s`;
  if (s < 3600) return t`${Math.floor(s / 60)} min ${s % 60} s`;
  return t`${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
};
const sized = (count, step) => {
  if (count === null || count === undefined) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= step && unit < units.length - 1) ((count /= step), unit++);
  return `${count >= 100 || unit === 0 ? Math.round(count) : formatFixed(count, 1)} ${units[unit]}`;
};
// Disks are counted in thousands. Memory is counted in powers of two: a GPU "of 24 GB" has 24 of these.
export const formatBytes = (count) => sized(count, 1000);
export const formatMemory = (count) => sized(count, 1024);
export const formatNumber = (value, digits = 4) =>
  value === null || value === undefined
    ? "–"
    : Number(value).toLocaleString(language, { maximumSignificantDigits: digits, useGrouping: false });
export const formatCount = counted;
