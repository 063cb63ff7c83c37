// HTTP to the admin API. The key lives in this tab only, and leaves it only as a header to this page's own server.

const KEY = "specgate-key";

export class AdminError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function setKey(key) {
  if (key) sessionStorage.setItem(KEY, key);
  else sessionStorage.removeItem(KEY);
}

/** Returns {status, etag, audit, body}: the newest audit line's hash, if told; the body of a 304 is null. Throws a AdminError for everything but 200 and 304. */
export async function ask(path, { body, etag, text } = {}) {
  const key = sessionStorage.getItem(KEY);
  const headers = {};
  if (key) headers.authorization = `Bearer ${key}`;
  if (etag) headers["if-none-match"] = etag;
  if (body !== undefined || text !== undefined) headers["content-type"] = "application/json";
  const request = { headers, cache: "no-store", credentials: "omit" };
  if (headers["content-type"]) Object.assign(request, { method: "POST", body: text ?? JSON.stringify(body) });
  let response;
  try {
    response = await fetch(path, request);
  } catch {
    throw new AdminError(0, "The admin API does not answer.");
  }
  const audit = response.headers.get("x-specgate-audit");
  if (response.status === 304) return { status: 304, etag, audit, body: null };
  let content = null;
  try {
    content = await response.json();
  } catch {
    throw new AdminError(response.status, `HTTP ${response.status} without JSON`);
  }
  if (!response.ok) throw new AdminError(response.status, content?.error?.message ?? `HTTP ${response.status}`);
  return { status: response.status, etag: response.headers.get("etag"), audit, body: content };
}
