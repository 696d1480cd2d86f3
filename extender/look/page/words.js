// How numbers, times and states are written.

const numbers = new Intl.NumberFormat("en");

// The order in which people count: rack-2 before rack-10.
export const natural = new Intl.Collator("en", { numeric: true });

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

const pad = (value) => String(value).padStart(2, "0");
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const timeOf = (date) => `${pad(date.getHours())}:${pad(date.getMinutes())}:${pad(date.getSeconds())}`;

// A time by the reader's own clock, with its day if that is not today's.
export function clock(at, now) {
  const date = new Date(at);
  const today = new Date(now * 1000).toDateString() === date.toDateString();
  return today ? timeOf(date) : `${MONTHS[date.getMonth()]} ${date.getDate()} ${timeOf(date)}`;
}

// How far a time is from now: in 4 min, 3 h ago.
export function whenIs(at, now) {
  const left = -secondsSince(at, now);
  return left >= 0 ? `in ${span(left)}` : `${span(-left)} ago`;
}

const TIME = /(\bat )?(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)/g;

// A sentence of the extender, with its times as people say them: from now, and by their own clock.
export const tell = (text, now) => text.replace(TIME, (_, before, at) => `${whenIs(at, now)} (${clock(at, now)})`);

// The same of a sentence that stays as it was said.
export const tellPast = (text, now) => text.replace(TIME, (_, before = "", at) => before + clock(at, now));

export const expectFit = (at, now) => `the gang ${secondsSince(at, now) > 0 ? "was" : "is"} expected to fit ${whenIs(at, now)}`;

export const secondsSince = (at, now) => now - Date.parse(at) / 1000;

// A reason stands before its sentence, once.
export const sentence = (reason, message) =>
  message.startsWith(`${reason}: `) ? message.slice(reason.length + 2) : message;

// What people call a state, on badges and filters: waiting, broken, planned, running; and how it is coloured.
const PLANNED = new Set(["Recording", "Preempting", "Gathering", "Committing", "Binding"]);

export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function phaseOf(gang) {
  if (PLANNED.has(gang.state)) return "planned";
  if (gang.state === "Scheduled") return "running";
  return gang.reason === "Broken" ? "broken" : "waiting";
}

// What people call a gang: what it was made for (job/train), else its PodGroup.
export const callOf = (gang) => gang.owner || gang.name;

// The PodGroup of a gang that is called otherwise; "" where there is none yet.
export const podGroupOf = (gang) => (gang.owner && !/[:/]/.test(gang.name) ? gang.name : "");

// What people call a gang of which only "namespace/name" is known and, perhaps, its owner.
export const callName = (group, owner) => (owner ? `${group.slice(0, group.indexOf("/"))}/${owner}` : group);

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
