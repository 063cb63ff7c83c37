// Figures as people read them. Null means that nothing is known.

const NONE = "–";

/** A share; one that is not quite none or all never looks as if it were. */
export const percent = (share, digits = 1) => {
  if (share == null) return NONE;
  const text = (share * 100).toFixed(digits);
  const least = 10 ** -digits;
  if (share > 0 && Number(text) === 0) return `<${least}\u00a0%`;
  return share < 1 && Number(text) === 100 ? `>${(100 - least).toFixed(digits)}\u00a0%` : `${text}\u00a0%`;
};
export const number = (value, digits = 1) => (value == null ? NONE : value.toFixed(digits).replace(/\.0+$/, ""));
export const seconds = (value) =>
  value == null ? NONE : value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
export const clock = (at_s) => new Date(at_s * 1000).toLocaleTimeString([], { hour12: false, timeZoneName: "short" });
export const moment = (at_s) => new Date(at_s * 1000).toLocaleString([], { hour12: false, timeZoneName: "short" });
const UNITS = ["", " k", " M", " G", " T"];
/** A count in few characters: 950, 12.5 k, 3 M. */
export const count = (value) => {
  if (value == null) return NONE;
  const unit = UNITS.findIndex((_, power) => Math.abs(value) < 999.5 * 1000 ** power);
  return unit < 1 ? number(value, 0) : `${number(value / 1000 ** unit, 1)}${UNITS[unit]}`;
};
