// The connection to the extender: it comes back by itself, and rests while nobody looks.

const SECONDS_UNTIL_RETRY = 5;
const SECONDS_HIDDEN = 60;

export function followStream(url, state, tell) {
  let source = null;
  let retry = 0;
  let rest = 0;

  function open() {
    clearTimeout(retry);
    source?.close();
    source = new EventSource(url);
    source.onmessage = (event) => {
      const message = JSON.parse(event.data);
      state.apply(message);
      if (state.complete) tell("live");
    };
    // The extender asks now and then who reads: to come anew at once is no error, and nobody has to be told.
    source.addEventListener("renew", open);
    source.onerror = () => {
      // A connection that broke is tried again by the browser itself; one that was refused is not.
      const refused = source.readyState === EventSource.CLOSED;
      tell(refused ? "refused" : "connecting");
      if (refused) retry = setTimeout(open, SECONDS_UNTIL_RETRY * 1000);
    };
  }

  function close() {
    clearTimeout(retry);
    source.close();
    tell("resting");
  }

  function look() {
    clearTimeout(rest);
    if (document.hidden) rest = setTimeout(close, SECONDS_HIDDEN * 1000);
    else if (source.readyState === EventSource.CLOSED) open();
  }

  open();
  look();
  document.addEventListener("visibilitychange", look);
}
