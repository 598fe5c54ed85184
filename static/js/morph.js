// Change the content of an element to new HTML by touching only what differs, so that focus,
// selected text, scroll positions and opened details survive. Children are matched by id, else by
// place and tag. With `data-keeps-order`, children stay where they are and new ones are appended.
//
// What the browser side owns stays: elements with `data-own`, and the attributes below.

const OWN_ATTRIBUTES = ["open", "data-settling", "data-filtered"];

export function morph(element, html) {
  const template = document.createElement("template");
  template.innerHTML = html;
  const focused = document.activeElement;
  morphChildren(element, template.content);
  const lost = focused !== document.activeElement; // moving an element takes its focus away
  if (lost && element.contains(focused)) focused.focus({ preventScroll: true });
}

function morphChildren(now, next) {
  if (now.dataset?.keepsOrder === undefined) inOrder(now, next);
  else inPlace(now, next);
}

function inOrder(now, next) {
  const known = byId(now);
  const wanted = byId(next);
  let place = now.firstChild;
  for (const node of [...next.childNodes]) {
    const gone = (old) => (old?.id && !wanted.has(old.id)) || (isBlank(old) && !isBlank(node));
    while (gone(place)) place = removed(place);
    if (isBlank(node) && place && !isBlank(place)) continue;
    const same = node.id ? known.get(node.id) : isAlike(place, node) && place;
    if (!same) {
      now.insertBefore(node, place);
      continue;
    }
    if (same === place) place = place.nextSibling;
    else now.insertBefore(same, place);
    morphNode(same, node);
  }
  while (place) place = removed(place);
}

function inPlace(now, next) {
  const known = byId(now);
  const wanted = byId(next);
  for (const [id, node] of known) if (!wanted.has(id)) node.remove();
  for (const [id, node] of wanted) {
    if (known.has(id)) morphNode(known.get(id), node);
    else now.append(node);
  }
}

function morphNode(now, next) {
  if (now.isEqualNode(next)) return;
  if (now.nodeName !== next.nodeName) {
    now.replaceWith(next);
    return;
  }
  if (now.nodeType !== Node.ELEMENT_NODE) {
    now.nodeValue = next.nodeValue;
    return;
  }
  if (now.hasAttribute("data-own")) return;
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !OWN_ATTRIBUTES.includes(name)) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    const own = OWN_ATTRIBUTES.includes(name);
    if (!own && now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  morphChildren(now, next);
}

function byId(parent) {
  return new Map([...parent.children].filter(({ id }) => id).map((child) => [child.id, child]));
}

function isAlike(now, next) {
  return now?.nodeName === next.nodeName && !now.id;
}

// White space between elements: how much there is depends on the template around a part.
function isBlank(node) {
  return node?.nodeType === Node.TEXT_NODE && node.nodeValue.trim() === "";
}

function removed(node) {
  const after = node.nextSibling;
  node.remove();
  return after;
}
