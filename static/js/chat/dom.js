// Small helpers around the page's HTML.

// The content of `<template data-template="name">`, an element of its own.
export function fromTemplate(name) {
  const template = document.querySelector(`template[data-template="${name}"]`);
  const element = template.content.firstElementChild.cloneNode(true);
  if (!navigator.clipboard) {
    const copies = '[data-action="copy"], [data-code="copy"]';
    for (const button of element.querySelectorAll(copies)) button.remove();
  }
  return element;
}

// Set a text, or hide the element where there is none. Nothing is touched that is as it should be.
export function show(element, text) {
  const content = text ?? "";
  element.hidden = content === "";
  if (element.textContent !== content) element.textContent = content;
}

// Draw an image into a canvas: the content policy has no room for pictures of the page's own.
export async function thumbnail(blob, name, size = 160) {
  const canvas = document.createElement("canvas");
  canvas.className = "thumbnail";
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", name);
  const picture = await createImageBitmap(blob).catch(() => null);
  if (picture === null) return canvas;
  const scale = Math.min(1, (2 * size) / Math.max(picture.width, picture.height));
  canvas.width = Math.max(1, picture.width * scale);
  canvas.height = Math.max(1, picture.height * scale);
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas;
}
