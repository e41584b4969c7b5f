// What live pages share: requests to their server, a line for errors (#error), and a spinner while a request takes long (#waiting).
const client = (() => {
  const getElement = (id) => document.getElementById(id);
  const showError = (text) => {
    getElement("error").textContent = text || "";
    getElement("error").hidden = !text;
  };
  const requestJson = async (path, body) => {
    const options = body ? { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body) } : {};
    const response = await fetch(path, options);
    const content = await response.json();
    if (!response.ok) throw new Error(content.error.message || content.error);
    return content;
  };
  let pending = 0;
  // Shows the spinner while `request` is pending, but not for one that ends at once.
  const showWaiting = async (request) => {
    pending += 1;
    const timers = [
      setTimeout(() => { getElement("waiting").textContent = "Searching …"; getElement("waiting").hidden = false; }, 300),
      setTimeout(() => { getElement("waiting").textContent = "Still searching: the first search loads the text model …"; }, 2500),
    ];
    try {
      return await request;
    } finally {
      timers.forEach(clearTimeout);
      pending -= 1;
      if (!pending) getElement("waiting").hidden = true;
    }
  };
  return { getElement, showError, requestJson, showWaiting };
})();
