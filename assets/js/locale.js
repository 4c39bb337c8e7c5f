// Shows texts in the page's language, which the server writes into <html lang>. The English texts are the keys of a
// catalogue (assets/locale); what it lacks stays English. `dom.js` asks for every text and title that it is given.

/** @typedef {{ stop: string, texts: Record<string, string>, counts: Record<string, Record<string, string>> }} Catalogue */

const EMPTY = { stop: ".", texts: {}, counts: {} };

export const language = document.documentElement.lang || "en";

/** @returns {Promise<Catalogue>} */
const load = async () => {
  if (language === "en") return EMPTY;
  try {
    const answer = await fetch(new URL(`../locale/${language}.json`, import.meta.url));
    return answer.ok ? await answer.json() : EMPTY;
  } catch {
    return EMPTY; // the page works without it, in English
  }
};
const catalogue = await load();
const english = catalogue === EMPTY;

/** @type {(text: string) => string | undefined} */
const entry = (text) => (Object.hasOwn(catalogue.texts, text) && catalogue.texts[text]) || undefined;
const upper = (text) => text.charAt(0).toLocaleUpperCase(language) + text.slice(1);
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");

// A text with values, as what recognizes a sentence of the server. Few letters say little: then only numbers are values.
const patternOf = (text) => {
  const parts = text.split(/\{\d+\}/);
  const value = text.replace(/\{\d+\}|[^A-Za-z]/g, "").length < 10 ? "([\\d.,:–+−-]+(?: ?[%A-Za-z]{1,3})?)" : "(.*?)";
  const first = parts[0] ? `[${escaped(parts[0][0])}${escaped(upper(parts[0][0]))}]${escaped(parts[0].slice(1))}` : "";
  const source = [first, ...parts.slice(1).map(escaped)].join(value);
  return {
    text,
    numbers: (text.match(/\{\d+\}/g) || []).map((mark) => mark.slice(1, -1)),
    longest: parts.map((part, at) => (at ? part : part.slice(1))).reduce((a, b) => (b.length > a.length ? b : a), ""),
    pattern: new RegExp(`^${source}${/[.!?…:]$/.test(text) ? "" : "(?<stop>\\.?)"}$`, "s"),
    letters: parts.join("").length,
  };
};
const patterns = Object.keys(catalogue.texts)
  .filter((text) => text.includes("{1}") && /[A-Za-z]{3}/.test(text))
  .map(patternOf)
  .sort((a, b) => b.letters - a.letters);

const filled = (text, values) => text.replace(/\{(\w+)\}/g, (mark, name) => values[name] ?? mark);

/** @type {(text: string) => string | undefined} */
const whole = (text) => {
  const found = entry(text) ?? entry(text.charAt(0).toLowerCase() + text.slice(1));
  if (found) return entry(text) ? found : upper(found);
  return text.endsWith(".") && text.length > 1 ? joined(whole(text.slice(0, -1))) : undefined;
};
const joined = (text) => text && text + catalogue.stop;

/** @type {(text: string, depth: number) => string | undefined} */
const byPattern = (text, depth) => {
  for (const { text: key, longest, pattern, numbers } of patterns) {
    const match = text.includes(longest) && pattern.exec(text);
    if (!match || !entry(key)) continue;
    const values = Object.fromEntries(numbers.map((name, at) => [name, search(match[at + 1], depth + 1)]));
    const sentence = filled(entry(key), values) + (match.groups?.stop ? catalogue.stop : "");
    return /^[A-Z]/.test(text) ? upper(sentence) : sentence;
  }
  return undefined;
};
// Several texts in one: parts of a line, or sentences one after the other.
const PARTS = [/ · /, /(?<=[.!?]) (?=[A-Z“])/];
const byParts = (text, depth) => {
  for (const [at, between] of PARTS.entries()) {
    const parts = text.split(between);
    if (parts.length > 1) return parts.map((part) => search(part, depth + 1)).join(at ? " " : " · ");
  }
  return undefined;
};
const search = (text, depth = 0) => {
  const [, before, core, after] = /^(\s*)(.*?)(\s*)$/s.exec(text);
  if (depth > 4 || !/[A-Za-z]{2}/.test(core)) return text;
  return before + (whole(core) ?? byPattern(core, depth) ?? byParts(core, depth) ?? core) + after;
};

/** @type {Map<string, string>} */
const known = new Map();
/**
 * A text in the page's language. What is no text, and what the catalogue lacks, stays as it is.
 *
 * @template Text
 * @param {Text} text
 * @returns {Text}
 */
export const translate = (text) => {
  if (english || typeof text !== "string") return text;
  if (!known.has(text)) {
    if (known.size > 5000) known.clear();
    known.set(text, search(text));
  }
  return /** @type {any} */ (known.get(text));
};
/**
 * A text with values: t`Added “${name}” to the queue`. Its key in the catalogue is "Added “{1}” to the queue". Values
 * that are texts of their own are translated too. t("graphs") marks a word that does not look like a text.
 *
 * @param {TemplateStringsArray | string} text
 * @param {...any} values
 * @returns {string}
 */
export const t = (text, ...values) => {
  if (typeof text === "string") return translate(text);
  if (english) return String.raw({ raw: text }, ...values);
  const [, before, key, after] = /^(\s*)(.*?)(\s*)$/s.exec(text.reduce((sum, part, at) => `${sum}{${at}}${part}`));
  const shown = values.map((value) => (typeof value === "string" ? wholeWith(value) : String(value)));
  return before + filled(entry(key) ?? key, ["", ...shown]) + after;
};
const wholeWith = (text) => text.replace(/\S(?:.*\S)?/s, (core) => whole(core) ?? core);

const rules = new Intl.PluralRules(language);
/**
 * A number with its noun. `one` is the noun in English, and the key in the catalogue.
 *
 * @param {number} n
 * @param {string} one
 * @param {string} [many]
 */
export const counted = (n, one, many = `${one}s`) => {
  const forms = Object.hasOwn(catalogue.counts, one) ? catalogue.counts[one] : null;
  const form = forms?.[rules.select(n)] || forms?.other || `{n} ${n === 1 ? one : many}`;
  return filled(form, { n: n.toLocaleString(language) });
};
