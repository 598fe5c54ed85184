// Number formats, the same as in admin/formats.py.

const THIN = "\u202f";

export const rate = (tokens) => tokens.toFixed(tokens >= 99.95 ? 0 : 1);
export const ratio = (value) => `${value.toFixed(value >= 1.05 ? 1 : 2)}×`;
export const percent = (share) => `${(100 * share).toFixed(0)}${THIN}%`;
export const clock = (at) => new Date(1000 * at).toLocaleTimeString("sv"); // 14:03:21
export const minute = (at) => clock(at).slice(0, 5);
