// REST calls to the coordinator with the user's token. Errors have the server's message.

const STORED = "tocsin.token";

class ApiError extends Error {
  /** @param {number} status @param {string} message @param {number|null} retryAfter_s */
  constructor(status, message, retryAfter_s = null) {
    super(message);
    this.status = status;
    this.retryAfter_s = retryAfter_s;
  }
}

export class Api {
  constructor() {
    this.token = "";
    /** @type {string[]} */ this.scopes = [];
    this.subject = "";
    this.use(takeFromAddress() ?? sessionStorage.getItem(STORED) ?? "");
  }

  use(token) {
    this.token = token.trim();
    if (this.token) sessionStorage.setItem(STORED, this.token);
    else sessionStorage.removeItem(STORED);
    const claims = claimsOf(this.token);
    this.scopes = String(claims.scope ?? "")
      .split(" ")
      .filter(Boolean);
    this.subject = String(claims.sub ?? "");
  }

  get isAdmin() {
    return this.scopes.includes("admin");
  }
  get maySubscribe() {
    return this.isAdmin || this.scopes.includes("register") || this.scopes.includes("subscribe");
  }

  headers() {
    return /** @type {Record<string, string>} */ (this.token ? { Authorization: `Bearer ${this.token}` } : {});
  }

  get(path) {
    return this.call("GET", path);
  }
  put(path, body) {
    return this.call("PUT", path, body);
  }
  post(path, body, token) {
    return this.call("POST", path, body, token);
  }

  /** @returns {Promise<any>} */
  async call(method, path, body, token) {
    const headers = token ? { Authorization: `Bearer ${token}` } : this.headers();
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(path, {
        method,
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        cache: "no-store",
      });
    } catch {
      throw new ApiError(0, "The coordinator does not answer. Is it running?");
    }
    const text = await response.text();
    const content = parsed(text);
    if (!response.ok) {
      const wait = Number(response.headers.get("Retry-After"));
      throw new ApiError(
        response.status,
        content?.error?.message ?? `${path} answered ${response.status}`,
        wait > 0 ? wait : null,
      );
    }
    return content ?? text;
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Browsers never send `#token=…` to a server. Remove it from the address bar, so that no user shares it by accident. */
function takeFromAddress() {
  const token = new URLSearchParams(location.hash.slice(1)).get("token");
  if (token) history.replaceState(null, "", location.pathname + location.search);
  return token;
}

/** The claims of a signed token. The page uses them only to choose the controls; the server checks the token. */
function claimsOf(token) {
  const body = token.split(".")[1];
  if (!body) return {};
  try {
    return JSON.parse(atob(body.replaceAll("-", "+").replaceAll("_", "/")));
  } catch {
    return {};
  }
}
