// The connection to the extender: it comes back by itself, and rests while nobody looks.

const SECONDS_UNTIL_RETRY = 5;
const SECONDS_HIDDEN = 60;

export function followStream(url, state, tell) {
  let source = null;
  let timer = 0;

  function open() {
    clearTimeout(timer);
    source?.close();
    source = new EventSource(url);
    source.onmessage = (event) => {
      const message = JSON.parse(event.data);
      state.apply(message);
      if (state.complete) tell("live");
    };
    source.onerror = () => {
      // A connection that broke is tried again by the browser itself; one that was refused is not.
      const refused = source.readyState === EventSource.CLOSED;
      tell(refused ? "refused" : "connecting");
      if (refused) timer = setTimeout(open, SECONDS_UNTIL_RETRY * 1000);
    };
  }

  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (!document.hidden && source?.readyState === EventSource.CLOSED) open();
    if (document.hidden) {
      timer = setTimeout(() => {
        source.close();
        tell("resting");
      }, SECONDS_HIDDEN * 1000);
    }
  });
  open();
}
