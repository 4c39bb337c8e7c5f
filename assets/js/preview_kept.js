// Keeps what was typed on the Preview tab while this browser tab is open: a refresh, or another language, loads the
// page again.

const KEY = "monotile-preview";

/** @param {Record<string, HTMLInputElement | HTMLTextAreaElement>} fields - by the name that they are kept under */
export const keepTyped = (fields) => {
  try {
    const values = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value]));
    sessionStorage.setItem(KEY, JSON.stringify(values));
  } catch {
    // Where storage is refused, a refreshed page starts anew.
  }
};

// Puts back what was typed before; whether anything was.
/** @param {Record<string, HTMLInputElement | HTMLTextAreaElement>} fields */
export const putBackTyped = (fields) => {
  try {
    const values = JSON.parse(sessionStorage.getItem(KEY) || "null");
    if (!values) return false;
    for (const [name, field] of Object.entries(fields)) field.value = values[name] ?? field.value;
    return true;
  } catch {
    return false;
  }
};
