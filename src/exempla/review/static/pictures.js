// Pictures and files: they need the key in a header, which neither <img src> nor <a href> can send.

import { blob } from "./server.js";

const KEPT = 120;
const addresses = new Map(); // path -> promise of an object URL

export async function showPicture(image, path) {
  try {
    image.src = await (addresses.get(path) ?? load(path));
  } catch {
    image.alt += " (not loaded)";
  }
}

function load(path) {
  const address = blob(path).then((data) => URL.createObjectURL(data));
  addresses.set(path, address);
  address.catch(() => addresses.delete(path));
  if (addresses.size > KEPT) {
    const [oldest, gone] = addresses.entries().next().value;
    addresses.delete(oldest);
    gone.then((old) => URL.revokeObjectURL(old), () => {}); // what is on the page stays on it
  }
  return address;
}

export async function download(path, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(await blob(path, 600_000));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
