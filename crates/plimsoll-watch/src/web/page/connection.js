// The line to the server: views as they come, and whether the line holds.
// A browser does not notice every dead line (a sleeping laptop, a tunnel that is gone), so silence counts too: the
// server says something every 5 seconds.

const SILENCE_MS = 15000;
const AGAIN_MS = 1000;

// Calls `heard(kind, text)` for each event and `held(whether)` when the line is made or lost.
export function connect(heard, held) {
  let source = null;
  let watchdog = 0;

  const alive = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(lost, SILENCE_MS);
    held(true);
  };

  const lost = () => {
    clearTimeout(watchdog);
    source.close();
    held(false);
    setTimeout(open, AGAIN_MS);
  };

  const open = () => {
    source = new EventSource("/events");
    watchdog = setTimeout(lost, SILENCE_MS);
    source.onopen = alive;
    source.onerror = lost;
    for (const kind of ["view", "trouble", "beat"]) {
      source.addEventListener(kind, (event) => {
        alive();
        heard(kind, event.data);
      });
    }
  };

  open();
}
