// Finds settings by their names here and in other trainers, and by their help texts.

import { t } from "./locale.js";
import { pageState } from "./state.js";

const plain = (text) => text.toLowerCase().replace(/[_\-.]+/g, " ");
export const findSettings = (text) => {
  const words = plain(text).split(/\s+/).filter(Boolean);
  const scored = [];
  for (const s of pageState.settings) {
    const names = [s.label, s.name, ...s.aliases].map(plain);
    const all = `${names.join(" ")} ${plain(s.help)} ${plain(s.group)}`;
    if (!words.every((word) => all.includes(word))) continue;
    const joined = words.join(" ");
    const score = names.some((n) => n === joined)
      ? 0
      : names.some((n) => n.startsWith(joined))
        ? 1
        : names.some((n) => n.includes(joined))
          ? 2
          : 3;
    const alias = s.aliases.find((a) => plain(a).includes(joined));
    scored.push({
      score,
      item: {
        label: s.label,
        detail: `${t(s.tab)} · ${score < 3 && alias && !plain(s.label).includes(joined) ? `= ${alias}` : s.name}`,
        id: s.id,
        tab: s.tab,
      },
    });
  }
  return scored
    .sort((a, b) => a.score - b.score)
    .slice(0, 12)
    .map((s) => s.item);
};
