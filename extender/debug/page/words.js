// How numbers, times and states are written.

const numbers = new Intl.NumberFormat("en");

export const count = (value) => numbers.format(value);

export const plural = (value, one, many = `${one}s`) => `${count(value)} ${value === 1 ? one : many}`;

// A length of time for people: 8 s, 3 min, 2 h 5 min, 4 d.
export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  if (hours < 24) return minutes % 60 ? `${hours} h ${minutes % 60} min` : `${hours} h`;
  return `${Math.floor(hours / 24)} d`;
}

export const clock = (at) => at.slice(11, 19);

export const secondsSince = (at, now) => now - Date.parse(at) / 1000;

// A reason stands before its sentence, once.
export const sentence = (reason, message) =>
  message.startsWith(`${reason}: `) ? message.slice(reason.length + 2) : message;

// What people call a stage: waiting, starting, running; and how it is coloured.
const STARTING = new Set(["Recording", "Preempting", "Gathering", "Committing", "Binding"]);

export function phaseOf(gang) {
  if (STARTING.has(gang.state)) return "starting";
  if (gang.state === "Scheduled") return "running";
  return gang.reason === "Broken" ? "broken" : "waiting";
}

// The last part of a topology key is what people say: rack.
export const shortKey = (key) => key.slice(key.lastIndexOf("/") + 1);

const BINARY = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

// An amount as Kubernetes writes it; cpu comes in millicores.
export function amount(resource, value) {
  if (resource === "cpu") return value % 1000 ? `${(value / 1000).toFixed(1)}` : count(value / 1000);
  if (resource !== "memory" && resource !== "ephemeral-storage" && !resource.startsWith("hugepages-")) return count(value);
  let step = 0;
  let left = value;
  while (left >= 1024 && step < BINARY.length - 1) {
    left /= 1024;
    step += 1;
  }
  return `${left >= 100 || Number.isInteger(left) ? Math.round(left) : left.toFixed(1)} ${BINARY[step]}`.trim();
}
