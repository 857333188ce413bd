// Hands the server's options to the browser's passkeys and posts what they answer. One form a page: data-passkey says
// "create" or "get", the options stand in #passkey-options.

const bytes = (text) =>
  Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (c) => c.charCodeAt(0));
const text = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
const keys = (list = []) => list.map((key) => ({ ...key, id: bytes(key.id) }));

const form = document.querySelector("form[data-passkey]");
const said = form.querySelector("[data-passkey-said]");
const button = form.querySelector("button:not([hidden])");

function options() {
  const { publicKey } = JSON.parse(document.getElementById("passkey-options").textContent);
  const read = { ...publicKey, challenge: bytes(publicKey.challenge) };
  if (publicKey.allowCredentials) read.allowCredentials = keys(publicKey.allowCredentials);
  if (publicKey.excludeCredentials) read.excludeCredentials = keys(publicKey.excludeCredentials);
  if (publicKey.user) read.user = { ...publicKey.user, id: bytes(publicKey.user.id) };
  return { publicKey: read };
}

function asJson(credential) {
  const response = {};
  for (const part of ["clientDataJSON", "attestationObject", "authenticatorData", "signature", "userHandle"]) {
    if (credential.response[part]) response[part] = text(credential.response[part]);
  }
  return JSON.stringify({
    id: credential.id,
    rawId: text(credential.rawId),
    type: credential.type,
    authenticatorAttachment: credential.authenticatorAttachment,
    clientExtensionResults: credential.getClientExtensionResults(),
    response,
  });
}

function sentence(error) {
  if (error.name === "NotAllowedError") return "Nothing was confirmed: it was cancelled or took too long. Try again.";
  if (error.name === "InvalidStateError") return "This device's passkey is among yours already.";
  if (error.name === "SecurityError") return "Passkeys need https, or localhost, and a name instead of an IP address.";
  return `The passkey did not answer: ${error.message}`;
}

form.addEventListener("submit", async (event) => {
  if (form.elements.credential.value) return;
  event.preventDefault();
  said.hidden = button.disabled = true;
  try {
    if (!navigator.credentials) throw new DOMException("", "SecurityError");
    const credential = await navigator.credentials[form.dataset.passkey](options());
    form.elements.credential.value = asJson(credential);
    form.submit();
  } catch (error) {
    said.textContent = sentence(error);
    said.hidden = button.disabled = false;
  }
});
