// Shows texts in the page's language, which the server writes into <html data-language>. The English texts are the
// keys of a catalogue (assets/locale); what it lacks stays English. `dom.js` asks for every text and title that it is
// given.

/**
 * @typedef {object} Catalogue
 * @property {string} stop The language's full stop.
 * @property {Record<string, string>} texts
 * @property {Record<string, Record<string, string>>} counts
 */

const EMPTY = { stop: ".", texts: {}, counts: {} };

const root = document.documentElement;
export const language = root.dataset.language || "en";
// Gradio's scripts set the browser's language, in which readers would speak the page's words.
const setLanguage = () => root.lang !== language && (root.lang = language);
setLanguage();
new MutationObserver(setLanguage).observe(root, { attributes: true, attributeFilter: ["lang"] });

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
// A capital at the start, but for names such as learning_rate.
const upper = (text) =>
  /^[\p{L}-]+(?![\p{L}_.\d-])/u.test(text) ? text.charAt(0).toLocaleUpperCase(language) + text.slice(1) : text;
const escaped = (text) => text.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
const filled = (text, values) => text.replace(/\{(\w+)\}/g, (mark, name) => values[name] ?? mark);

// A text with values, as what recognizes a sentence of the server. A few letters that are no sentence say little: there
// only numbers are values.
const patternOf = (text) => {
  const parts = text.split(/\{\d+\}/);
  const letters = parts.join("").replace(/[^A-Za-z]/g, "").length;
  const weak = letters < 10 && !/^[A-Z“]|\.$/.test(text);
  const value = weak ? "([\\d.,:–+−-]+(?: ?[%A-Za-z]{1,3})?)" : "(.*?)";
  const [first] = parts[0];
  const start = first ? `[${escaped(first)}${escaped(first.toUpperCase())}]${escaped(parts[0].slice(1))}` : "";
  // A value at the start ends with its sentence, and any value of a text that is one sentence.
  const sentence = "((?:(?![.!?] [A-Z“\\d]).)*?)";
  const open = /[.!?…]/.test(text) ? sentence : "((?:(?![.!?] [A-Za-z]).)*?)";
  const inside = weak || /[.!?…][ {]/.test(text) ? value : open;
  const leading = weak || first ? inside : sentence;
  const source = start + leading + parts.slice(1).map(escaped).join(inside);
  return {
    text,
    letters,
    short: letters < 10 && !/[.:“(]/.test(text),
    opens: Boolean(first),
    numbers: (text.match(/\{\d+\}/g) || []).map((mark) => mark.slice(1, -1)),
    pattern: new RegExp(`^${source}${/[.!?…:]$|[.}] ?\{\d+\}$/.test(text) ? "" : "(?<stop>\\.?)"}$`, "s"),
  };
};
// By their longest word: only texts that have it are compared. Those that begin as the text does count first.
/** @type {Map<string, ReturnType<typeof patternOf>[]>} */
const patterns = new Map();
for (const text of Object.keys(catalogue.texts)) {
  if (!text.includes("{1}") || !/[A-Za-z]{2}/.test(text.replace(/\{\d+\}/g, ""))) continue;
  const words = text.replace(/\{\d+\}/g, "0").match(/(?<!\w)[A-Za-z]{2,}(?!\w)/g) || [""];
  const word = words.reduce((a, b) => (b.length > a.length ? b : a)).toLowerCase();
  patterns.set(word, [...(patterns.get(word) || []), patternOf(text)]);
}
const candidates = (text) =>
  ["", ...new Set(text.toLowerCase().match(/(?<!\w)[a-z]{2,}(?!\w)/g))]
    .flatMap((word) => patterns.get(word) || [])
    .sort((a, b) => Number(b.opens) - Number(a.opens) || b.letters - a.letters);

/** @type {(text: string) => string | undefined} */
const whole = (text) => {
  const exact = entry(text);
  if (exact) return exact;
  const lower = entry(text.charAt(0).toLowerCase() + text.slice(1));
  if (lower) return upper(lower);
  const open = text.length > 1 && text.endsWith(".") ? whole(text.slice(0, -1)) : undefined;
  return open && open + catalogue.stop;
};
const PROSE = /[A-Za-z]{2,} [a-z]{2,} [a-z]{2,}/;
/** @type {(text: string, depth: number) => string | undefined} */
const byPattern = (text, depth) => {
  for (const { text: key, pattern, numbers, short } of candidates(text)) {
    const match = entry(key) && pattern.exec(text);
    if (!match) continue;
    // "Change {1}" is no part of a longer sentence that begins so.
    if (short && numbers.some((_, at) => PROSE.test(match[at + 1]) && !lookup(match[at + 1], depth + 1))) continue;
    const values = Object.fromEntries(numbers.map((name, at) => [name, search(match[at + 1], depth + 1)]));
    const sentence = filled(entry(key), values) + (match.groups?.stop ? catalogue.stop : "");
    return /^[A-Z]/.test(text) ? upper(sentence) : sentence;
  }
  return undefined;
};
// Several texts in one: parts of a line, or sentences one after the other. At a colon, a comma or "and" only if each
// part is one: names of files come with them too.
const SENTENCES = /(?<=[.!?])( )(?=[A-Z“\d]|[a-z]+_)/;
const CLOSE_PARTS = [/, and /, /(: )/, /(?=, )/];
// Sentences one after the other, of which some may be one text together.
/** @type {(text: string, depth: number) => string | undefined} */
const bySentences = (text, depth) => {
  const parts = text.split(SENTENCES);
  if (parts.length < 2) return undefined;
  let translated = "";
  for (let at = 0, end; at < parts.length; at = end + 1) {
    end = parts.length;
    while (end > at + 1 && !whole(parts.slice(at, end).join(""))) end -= 2;
    translated += search(parts.slice(at, end).join(""), depth + 1) + (parts[end] ?? "");
  }
  return translated;
};
// A list in a sentence: (1) this; (2) that.
/** @type {(text: string, depth: number) => string | undefined} */
const byNumbers = (text, depth) => {
  const items = text.startsWith("(1) ") ? text.split(/(; )(?=\(\d+\) )/) : [];
  return items.length > 1 ? items.map((item) => search(item, depth + 1)).join("") : undefined;
};
/** @type {(text: string, depth: number) => string | undefined} */
const byParts = (text, depth) => {
  const pieces = text.split(/( · )/);
  if (pieces.length > 1) return pieces.map((part) => search(part, depth + 1)).join("");
  const sentences = bySentences(text, depth);
  if (sentences !== undefined) return sentences;
  for (const between of CLOSE_PARTS) {
    const parts = text.split(between);
    const shown = parts.map((part) => lookup(part, depth + 1) ?? (/[A-Za-z]{3}/.test(part) ? undefined : part));
    if (parts.length < 2 || shown.includes(undefined)) continue;
    return shown.join(between === CLOSE_PARTS[0] ? (entry("{1} and {2}") || " & ").replace(/\{\d\}/g, "") : "");
  }
  return undefined;
};
/** @type {(text: string, depth: number) => string | undefined} */
const lookup = (text, depth) => {
  const [, before, core, after] = /^(\s*)(.*?)(\s*)$/s.exec(text);
  if (depth > 4 || !/[A-Za-z]{2}/.test(core)) return undefined;
  const shown = whole(core) ?? byNumbers(core, depth) ?? byPattern(core, depth) ?? byParts(core, depth);
  return shown === undefined ? undefined : before + shown + after;
};
const search = (text, depth = 0) => lookup(text, depth) ?? text;

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
 * A text with values: t`Added “${name}” to the queue` has the key "Added “{1}” to the queue" in the catalogue.
 * Values that are texts of their own are translated too. t("graphs") marks a word that does not look like a text.
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
