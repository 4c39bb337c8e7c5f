// Asks the page's own server. Addresses are relative to this module, so that the page may lie under any path.

/** @import { Answers } from "./server" */

const ROOT = new URL("../../", import.meta.url);

// The address of one of the server's routes ("/image"), with its query; what is undefined or null is left out, and each
// value of a list is named.
export const address = (path, query = {}) => {
  const place = new URL(path.replace(/^\//, ""), ROOT);
  for (const [name, value] of Object.entries(query)) {
    for (const each of Array.isArray(value) ? value : [value]) {
      if (each !== undefined && each !== null) place.searchParams.append(name, String(each));
    }
  }
  return place.href;
};

export const readAnswer = async (response) => {
  const kind = response.headers.get("content-type") || "";
  const body = kind.includes("json") ? await response.json() : await response.text();
  if (!response.ok) throw new Error((body && body.detail) || (typeof body === "string" && body) || response.statusText);
  return body;
};
/**
 * @template {keyof Answers} Route
 * @param {Route} path
 * @param {Record<string, any>} [query]
 * @returns {Promise<Answers[Route]>}
 */
export const getJson = async (path, query = {}) => readAnswer(await fetch(address(path, query), { cache: "no-store" }));

/**
 * @template {keyof Answers} Route
 * @param {Route} path
 * @param {Record<string, any>} [body]
 * @returns {Promise<Answers[Route]>}
 */
export const postJson = async (path, body = {}) =>
  readAnswer(
    await fetch(address(path), {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
    }),
  );
