// Sends a line without leaving the page, and shows the answer as it is written. Without this script the form does the same, on a new
// page each time.
(() => {
  const form = document.getElementById("talk"), state = document.getElementById("state");
  const shown = document.getElementById("text"), button = form.querySelector("button");
  const { text, line } = form.elements;
  let asking = null;

  const show = (words) => {
    shown.append(words);
    shown.scrollTop = shown.scrollHeight;
  };

  const take = (said) => {
    if (said.piece !== undefined) {
      text.value += said.piece;
      show(said.piece);
    } else if (said.failed !== undefined) {
      state.textContent = said.failed;
    } else if (said.ended) {
      state.textContent = "The text ends here; the next line begins another one.";
      text.value = "";
    }
  };

  const read = async (body) => {
    const decoder = new TextDecoder(), reader = body.getReader();
    let rest = "";
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop();
      lines.forEach((said) => take(JSON.parse(said)));
    }
  };

  const ask = async () => {
    asking = new AbortController();
    button.textContent = "Stop";
    state.textContent = "";
    const body = new URLSearchParams(new FormData(form));
    try {
      const answer = await fetch("/answer", { method: "POST", body, signal: asking.signal });
      if (!answer.ok) { state.textContent = await answer.text(); return; }
      const beginsAnew = text.value === "" && shown.textContent !== "";
      const put = text.value === "" || line.value === "" ? line.value : `\n${line.value}`;
      text.value += put;
      show(beginsAnew ? `\n\n${put}` : put);
      line.value = "";
      await read(answer.body);
    } catch (error) {
      state.textContent = error.name === "AbortError" ? "Stopped." : "The program that answers is gone.";
    } finally {
      asking = null;
      button.textContent = "Go on";
      line.focus();
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (asking) asking.abort(); else ask();
  });
  line.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (!asking) form.requestSubmit();
  });
})();
