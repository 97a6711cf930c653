// The key to the server, traded for the token in the address that `exempla review` printed.
//
// It is kept in the storage of this origin. Ports belong to the origin: a page that another program
// serves on another port can neither read it nor make this browser send it, as it could with a cookie.
// A new start of the server has a new key, and any tab that gets it gives it to the others.

const STORED = "exempla-session";
let held = ""; // where storage is forbidden: until the tab is reloaded

export function key() {
  try {
    return localStorage.getItem(STORED) ?? held;
  } catch {
    return held;
  }
}

// Trade the token, if the address has one, and take it out of the address and the history.
// Returns what the server said against it.
export async function enter() {
  const token = new URLSearchParams(location.search).get("token");
  if (token === null) return "";
  history.replaceState(null, "", "/");
  const headers = { "Content-Type": "application/json", "X-Exempla": encodeURIComponent(token) };
  const answer = await fetch("/api/session", { method: "POST", headers, body: "{}" });
  if (!answer.ok) return answer.text();
  held = (await answer.json()).session;
  try {
    localStorage.setItem(STORED, held);
  } catch {
    // As above.
  }
  return "";
}
